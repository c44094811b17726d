"""`tilegraph.ops.math.Math` written out as straight-line C: fast enough to try every float32, with a real fused fma."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_TYPES = {"float32": "float", "float64": "double", "bool": "bool"} | {
    f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)
}


class Var(NamedTuple):
    name: str
    dtype: str


class CMath:
    """Each operation appends one statement to `lines`. `fused` decides how `fma` rounds."""

    def __init__(self, fused: bool) -> None:
        self.fused = fused
        self.lines: list[str] = []

    def _new(self, dtype: str, expression: str) -> Var:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{_TYPES[dtype]} {name} = {expression};")
        return Var(name, dtype)

    def dtype(self, v: Var) -> str:
        return v.dtype

    def const(self, value: Any, dtype: str) -> Var:
        if dtype == "float32":
            try:
                bits = struct.unpack("<I", struct.pack("<f", value))[0]
            except OverflowError:
                bits = 0x7F800000 if value > 0 else 0xFF800000
            return self._new(dtype, f"from_bits32({bits:#x}u)")
        if dtype == "float64":
            return self._new(dtype, f"from_bits64({struct.unpack('<Q', struct.pack('<d', value))[0]:#x}ull)")
        if dtype == "bool":
            return self._new(dtype, "true" if value else "false")
        return self._new(dtype, f"({_TYPES[dtype]}){value}ll")

    def _binary(self, a: Var, b: Var, operator: str, dtype: str | None = None) -> Var:
        assert a.dtype == b.dtype, (a, operator, b)
        return self._new(dtype or a.dtype, f"{a.name} {operator} {b.name}")

    def _wrapping(self, a: Var, b: Var, operator: str) -> Var:
        assert a.dtype == b.dtype
        if a.dtype.startswith("int"):
            unsigned = _TYPES["u" + a.dtype]
            return self._new(a.dtype, f"({_TYPES[a.dtype]})(({unsigned}){a.name} {operator} ({unsigned}){b.name})")
        return self._binary(a, b, operator)

    def add(self, a: Var, b: Var) -> Var:
        return self._wrapping(a, b, "+")

    def sub(self, a: Var, b: Var) -> Var:
        return self._wrapping(a, b, "-")

    def mul(self, a: Var, b: Var) -> Var:
        return self._wrapping(a, b, "*")

    def div(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "/")

    def fma(self, a: Var, b: Var, c: Var) -> Var:
        if not self.fused:
            return self.add(self.mul(a, b), c)
        function = "__builtin_fmaf" if a.dtype == "float32" else "__builtin_fma"
        return self._new(a.dtype, f"{function}({a.name}, {b.name}, {c.name})")

    def neg(self, a: Var) -> Var:
        return self._new(a.dtype, f"-{a.name}")

    def abs(self, a: Var) -> Var:
        return self._new(a.dtype, f"__builtin_fabs{'f' if a.dtype == 'float32' else ''}({a.name})")

    def _rounding(self, a: Var, function: str) -> Var:
        return self._new(a.dtype, f"__builtin_{function}{'f' if a.dtype == 'float32' else ''}({a.name})")

    def floor(self, a: Var) -> Var:
        return self._rounding(a, "floor")

    def round_even(self, a: Var) -> Var:
        return self._rounding(a, "rint")

    def sqrt(self, a: Var) -> Var:
        return self._rounding(a, "sqrt")

    def eq(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "==", "bool")

    def ne(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "!=", "bool")

    def lt(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "<", "bool")

    def le(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "<=", "bool")

    def land(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "&", "bool")

    def lor(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "|", "bool")

    def lnot(self, a: Var) -> Var:
        return self._new("bool", f"!{a.name}")

    def select(self, c: Var, a: Var, b: Var) -> Var:
        assert c.dtype == "bool"
        assert a.dtype == b.dtype
        return self._new(a.dtype, f"{c.name} ? {a.name} : {b.name}")

    def band(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "&")

    def bor(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "|")

    def bxor(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, "^")

    def shl(self, a: Var, b: Var) -> Var:
        unsigned = _TYPES[a.dtype if a.dtype.startswith("u") else "u" + a.dtype]
        return self._new(a.dtype, f"({_TYPES[a.dtype]})(({unsigned}){a.name} << {b.name})")

    def shr(self, a: Var, b: Var) -> Var:
        return self._binary(a, b, ">>")

    def bitcast(self, a: Var, dtype: str) -> Var:
        return self._new(dtype, f"__builtin_bit_cast({_TYPES[dtype]}, {a.name})")

    def cast(self, a: Var, dtype: str) -> Var:
        return self._new(dtype, f"({_TYPES[dtype]}){a.name}")

    def share(self, a: Var) -> Var:
        return a


# Compiled with -ffast-math, which lets the compiler call glibc's vector functions: 4 ulp of double are plenty.
_REFERENCES = r"""
#include <cmath>
void references(const float* x, double* r, int n) {
  for (int i = 0; i < n; i++) { double y = x[i]; r[i] = [](double x) { return @REFERENCE@; }(y); }
}
"""

_HARNESS = r"""
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
static inline float from_bits32(uint32_t b) { return __builtin_bit_cast(float, b); }
static inline double from_bits64(uint64_t b) { return __builtin_bit_cast(double, b); }
static float fused(float x) { @FUSED@ }
static float twice(float x) { @TWICE@ }
static double reference(double x) { return @REFERENCE@; }
void references(const float* x, double* r, int n);
static double ulp(double reference) {
  float r = std::fabs((float)reference);
  if (std::isinf(r)) return 0x1p104;
  int e; std::frexp(r, &e);
  return std::ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
}
struct Worst { double error = 0; float at = 0; long special = 0; float special_at = 0; };
static void look(Worst& w, float x, float y, double r) {
  float rounded = (float)r;
  if (std::isnan(r) || std::isnan(y)) {
    if (std::isnan(r) != std::isnan(y)) { w.special++; w.special_at = x; }
    return;
  }
  if (std::isinf(rounded) || std::isinf(y)) {
    if (rounded == y) return;
    // Next to the overflow threshold either neighbour is right.
    if (std::fabs(r) < 0x1.ffffff8p127 && std::fabs(r) > 0x1.fffff0p127) return;
    w.special++; w.special_at = x; return;
  }
  if (std::signbit(y) != std::signbit(r) && @SIGNED@) { w.special++; w.special_at = x; return; }
  double e = std::fabs((double)y - r) / ulp(r);
  if (e > w.error) { w.error = e; w.at = x; }
}
int main(int argc, char** argv) {
  uint64_t step = std::strtoull(argv[1], nullptr, 10);
  enum { N = 4096 };
  static float x[N], a[N], b[N];
  static double r[N];
  Worst f, t;
  for (uint64_t start = 0; start < (1ull << 32); start += N * step) {
    int n = 0;
    for (; n < N && start + n * step < (1ull << 32); n++) x[n] = from_bits32((uint32_t)(start + n * step));
    for (int i = 0; i < n; i++) a[i] = fused(x[i]);
    for (int i = 0; i < n; i++) b[i] = twice(x[i]);
    references(x, r, n);
    for (int i = 0; i < n; i++) {
      if (!std::isfinite(x[i])) r[i] = reference(x[i]);
      look(f, x[i], a[i], r[i]);
      look(t, x[i], b[i], r[i]);
    }
  }
  for (const Worst& w : {f, t}) std::printf("%.9g %.9g %ld %.9g\n", w.error, w.at, w.special, w.special_at);
}
"""


class Report(NamedTuple):
    """The largest error in ulp (of the float32 reference, denormal step included), where it is, and how many results
    had NaN, infinity or (if asked) a sign where the reference has not, with one of them."""

    error: float
    at: float
    special: int
    special_at: float


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def sweep(
    function: Callable[[Any, Any], Any], reference: str, folder: Path, step: int = 1, signed: bool = True
) -> tuple[Report, Report]:
    """Tries every `step`-th float32 against `reference`, a C expression of double x: (fused fma, twice rounded)."""
    bodies = {}
    for name, fused in (("FUSED", True), ("TWICE", False)):
        m = CMath(fused)
        result = function(m, Var("x", "float32"))
        bodies[name] = "\n  ".join([*m.lines, f"return {result.name};"])
    source = _HARNESS.replace("@REFERENCE@", reference).replace("@SIGNED@", str(int(signed)))
    for name, body in bodies.items():
        source = source.replace(f"@{name}@", body)
    (folder / "sweep.cc").write_text(source)
    (folder / "references.cc").write_text(_REFERENCES.replace("@REFERENCE@", reference))
    command = [compiler() or "g++", "-std=c++20", "-O3" if step < 100 else "-O1", "-march=native"]
    strict = ["-ffp-contract=off", "-fno-trapping-math"]
    for stem, options in (("sweep", strict), ("references", ["-ffast-math"])):
        build = [*command, *options, "-c", "-o", str(folder / f"{stem}.o"), str(folder / f"{stem}.cc")]
        subprocess.run(build, check=True, capture_output=True)
    # Linked without -ffast-math, which would flush denormals in the whole process.
    objects = [str(folder / "sweep.o"), str(folder / "references.o")]
    subprocess.run([*command, "-o", str(folder / "sweep"), *objects, "-lm"], check=True, capture_output=True)
    out = subprocess.run([str(folder / "sweep"), str(step)], check=True, capture_output=True, text=True).stdout
    reports = [
        Report(float(e), float(at), int(special), float(special_at))
        for e, at, special, special_at in (line.split() for line in out.splitlines())
    ]
    return reports[0], reports[1]
