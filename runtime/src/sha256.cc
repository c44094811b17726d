#include "sha256.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tilegraph {
namespace {

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const unsigned char* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

using State = std::array<uint32_t, 8>;

void compress(State& state, const unsigned char* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += add[i];
}

void portable(State& state, const unsigned char* data, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) compress(state, data + 64 * i);
}

#if defined(__x86_64__)
// CPUID leaf 7, EBX bit 29; not every compiler has a name for it.
bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __builtin_cpu_init();  // we may come before the compiler's own initialization
  return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

// The SHA instructions keep the eight words as two vectors, {f, e, b, a} and {h, g, d, c} from the lowest lane up
// (Intel's manual, volume 2, SHA256RNDS2); each runs two rounds, and the vectors change places.
__attribute__((target("sha,sse4.1"))) void with_instructions(State& state, const unsigned char* data, size_t blocks) {
  auto word = [&](size_t i) { return static_cast<int>(state[i]); };
  __m128i abef = _mm_set_epi32(word(0), word(1), word(4), word(5));
  __m128i cdgh = _mm_set_epi32(word(2), word(3), word(6), word(7));
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  for (; blocks; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (size_t i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; ++i) {
      __m128i& now = w[i % 4];
      if (i >= 4) {
        const __m128i last = w[(i + 3) % 4];
        now = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
        now = _mm_sha256msg2_epu32(now, last);
      }
      const __m128i sum = _mm_add_epi32(now, _mm_loadu_si128(reinterpret_cast<const __m128i*>(&kRound[4 * i])));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) std::array<uint32_t, 8> out;
  _mm_store_si128(reinterpret_cast<__m128i*>(&out[0]), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(&out[4]), cdgh);
  state = {out[3], out[2], out[7], out[6], out[1], out[0], out[5], out[4]};
}
#endif

using Compress = void (*)(State&, const unsigned char*, size_t);

constexpr State kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// The digest of `length` bytes in all, of which all whole blocks are in `state` and the last `rest` bytes are given.
std::string finish(State state, const unsigned char* bytes, size_t rest, uint64_t length, Compress compress) {
  std::array<unsigned char, 128> tail{};
  if (rest) std::memcpy(tail.data(), bytes, rest);
  tail[rest] = 0x80;
  size_t end = rest < 56 ? 64 : 128;
  for (size_t i = 0; i < 8; ++i) tail[end - 1 - i] = static_cast<unsigned char>(length * 8 >> (8 * i));
  compress(state, tail.data(), end / 64);

  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) hex += kHex[word >> shift & 15];
  return hex;
}

std::string digest(std::string_view data, Compress compress) {
  State state = kStart;
  auto bytes = reinterpret_cast<const unsigned char*>(data.data());
  size_t blocks = data.size() / 64;
  compress(state, bytes, blocks);
  return finish(state, bytes + blocks * 64, data.size() % 64, data.size(), compress);
}

// Asked when the plugin is loaded, not by a session: CPUID takes 6 µs in a virtual machine, which its host emulates.
#if defined(__x86_64__)
const Compress fastest = has_instructions() ? with_instructions : portable;
#else
constexpr Compress fastest = portable;
#endif

}  // namespace

std::string sha256_hex(std::string_view data) { return digest(data, fastest); }

Sha256::Sha256() : state_(kStart) {}

void Sha256::add(std::string_view piece) {
  length_ += piece.size();
  auto bytes = reinterpret_cast<const unsigned char*>(piece.data());
  size_t left = piece.size();
  if (kept_) {
    size_t taken = std::min(left, rest_.size() - kept_);
    std::memcpy(rest_.data() + kept_, bytes, taken);
    kept_ += taken, bytes += taken, left -= taken;
    if (kept_ < rest_.size()) return;
    fastest(state_, rest_.data(), 1);
    kept_ = 0;
  }
  fastest(state_, bytes, left / 64);
  kept_ = left % 64;
  if (kept_) std::memcpy(rest_.data(), bytes + left - kept_, kept_);
}

std::string Sha256::hex() const { return finish(state_, rest_.data(), kept_, length_, fastest); }

std::string sha256_hex_portable(std::string_view data) { return digest(data, portable); }

}  // namespace tilegraph
