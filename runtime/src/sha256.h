// SHA-256 (FIPS 180-4).
#pragma once

#include <string>
#include <string_view>

namespace tilegraph {

// 64 lower-case hex digits.
std::string sha256_hex(std::string_view data);

// The same without the CPU's instructions for it, which are four times as fast or more.
std::string sha256_hex_portable(std::string_view data);

}  // namespace tilegraph
