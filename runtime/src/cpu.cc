#include "cpu.h"

#include <map>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tilegraph {
namespace {

using Probe = bool (*)();

#if defined(__x86_64__)

// Tile registers: Linux gives them to a process that asks (Documentation/arch/x86/xstate.rst), for all of its threads.
bool tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = __builtin_cpu_supports("amx-tile") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

// AMX-FP16 is CPUID leaf 7, subleaf 1, EAX bit 21; not every compiler has a name for it.
bool tiles_fp16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return tiles() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 21 & 1);
}

// LLVM's spelling, then the compiler's; both the CPU and the operating system (XCR0) are asked.
#define TILEGRAPH_PROBE(llvm, gcc) {llvm, [] { return __builtin_cpu_supports(gcc) != 0; }}

const std::map<std::string, Probe>& levels() {
  static const std::map<std::string, Probe> table = {
      {"x86-64", [] { return true; }},
      TILEGRAPH_PROBE("x86-64-v2", "x86-64-v2"),
      TILEGRAPH_PROBE("x86-64-v3", "x86-64-v3"),
      TILEGRAPH_PROBE("x86-64-v4", "x86-64-v4"),
  };
  return table;
}

const std::map<std::string, Probe>& features() {
  static const std::map<std::string, Probe> table = {
      TILEGRAPH_PROBE("sse3", "sse3"),
      TILEGRAPH_PROBE("ssse3", "ssse3"),
      TILEGRAPH_PROBE("sse4.1", "sse4.1"),
      TILEGRAPH_PROBE("sse4.2", "sse4.2"),
      TILEGRAPH_PROBE("popcnt", "popcnt"),
      TILEGRAPH_PROBE("lzcnt", "lzcnt"),
      TILEGRAPH_PROBE("bmi", "bmi"),
      TILEGRAPH_PROBE("bmi2", "bmi2"),
      TILEGRAPH_PROBE("f16c", "f16c"),
      TILEGRAPH_PROBE("avx", "avx"),
      TILEGRAPH_PROBE("avx2", "avx2"),
      TILEGRAPH_PROBE("fma", "fma"),
      TILEGRAPH_PROBE("gfni", "gfni"),
      TILEGRAPH_PROBE("vaes", "vaes"),
      TILEGRAPH_PROBE("vpclmulqdq", "vpclmulqdq"),
      TILEGRAPH_PROBE("avxvnni", "avxvnni"),
      TILEGRAPH_PROBE("avx512f", "avx512f"),
      TILEGRAPH_PROBE("avx512cd", "avx512cd"),
      TILEGRAPH_PROBE("avx512bw", "avx512bw"),
      TILEGRAPH_PROBE("avx512dq", "avx512dq"),
      TILEGRAPH_PROBE("avx512vl", "avx512vl"),
      TILEGRAPH_PROBE("avx512ifma", "avx512ifma"),
      TILEGRAPH_PROBE("avx512vbmi", "avx512vbmi"),
      TILEGRAPH_PROBE("avx512vbmi2", "avx512vbmi2"),
      TILEGRAPH_PROBE("avx512vnni", "avx512vnni"),
      TILEGRAPH_PROBE("avx512bitalg", "avx512bitalg"),
      TILEGRAPH_PROBE("avx512vpopcntdq", "avx512vpopcntdq"),
      TILEGRAPH_PROBE("avx512bf16", "avx512bf16"),
      TILEGRAPH_PROBE("avx512fp16", "avx512fp16"),
      {"amx-tile", tiles},
      {"amx-int8", [] { return tiles() && __builtin_cpu_supports("amx-int8"); }},
      {"amx-bf16", [] { return tiles() && __builtin_cpu_supports("amx-bf16"); }},
      {"amx-fp16", tiles_fp16},
  };
  return table;
}

#undef TILEGRAPH_PROBE

#else

const std::map<std::string, Probe>& levels() {
  static const std::map<std::string, Probe> table = {{"armv8-a", [] { return true; }}};
  return table;
}
const std::map<std::string, Probe>& features() {
  static const std::map<std::string, Probe> none;
  return none;
}

#endif

}  // namespace

std::string cpu_lacks(const std::string& isa, const std::vector<std::string>& wanted) {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  auto level = levels().find(isa);
  if (level == levels().end()) return "it was compiled for '" + isa + "', which is not an architecture level of this machine";
  std::string lacking, unknown;
  if (!level->second()) lacking += " " + isa;
  for (const std::string& name : wanted) {
    auto feature = features().find(name);
    if (feature == features().end())
      unknown += " " + name;
    else if (!feature->second())
      lacking += " " + name;
  }
  if (!lacking.empty()) return "it was compiled for a CPU with features that this one lacks:" + lacking;
  if (!unknown.empty()) return "it needs CPU features that this runtime does not know:" + unknown;
  return "";
}

}  // namespace tilegraph
