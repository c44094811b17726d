// Reads from the bytes of an ELF file, which may be anything.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace tilegraph {

// The T at `offset`, or nothing if it does not lie wholly inside the image.
template <class T>
std::optional<T> read_at(std::string_view image, uint64_t offset) {
  if (offset > image.size() || image.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, image.data() + offset, sizeof value);
  return value;
}

}  // namespace tilegraph
