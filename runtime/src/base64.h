// Base64 (RFC 4648, with padding, no line breaks): how an embedded library travels in a string attribute.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tilegraph {

// Nothing if `text` is not canonical base64.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace tilegraph
