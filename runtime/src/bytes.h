// Arithmetic on byte counts: more than memory can hold is bad_alloc, never a small number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace tilegraph {

inline constexpr size_t kMemoryAlignment = 64;

inline size_t add_bytes(size_t a, size_t b) {
  size_t result;
  if (__builtin_add_overflow(a, b, &result) || result > static_cast<size_t>(PTRDIFF_MAX)) throw std::bad_alloc();
  return result;
}

inline size_t multiply_bytes(size_t a, size_t b) {
  size_t result;
  if (__builtin_mul_overflow(a, b, &result) || result > static_cast<size_t>(PTRDIFF_MAX)) throw std::bad_alloc();
  return result;
}

inline size_t round_up_bytes(size_t bytes) {
  return add_bytes(bytes, kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

}  // namespace tilegraph
