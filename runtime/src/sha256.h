// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tilegraph {

// 64 lower-case hex digits.
std::string sha256_hex(std::string_view data);

// The same of a text that comes in pieces.
class Sha256 {
 public:
  Sha256();
  void add(std::string_view piece);
  std::string hex() const;

 private:
  std::array<uint32_t, 8> state_;
  std::array<unsigned char, 64> rest_{};  // what does not fill a block yet
  size_t kept_ = 0;                       // bytes of rest_
  uint64_t length_ = 0;
};

// The same without the CPU's instructions for it, which are four times as fast or more.
std::string sha256_hex_portable(std::string_view data);

}  // namespace tilegraph
