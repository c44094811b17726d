// SHA-256 (FIPS 180-4).
#pragma once

#include <string>
#include <string_view>

namespace tilegraph {

// 64 lower-case hex digits.
std::string sha256_hex(std::string_view data);

}  // namespace tilegraph
