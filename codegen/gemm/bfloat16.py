"""Products of bfloat16 with float32 sums, by the two instructions of AVX512-BF16.

Elements lie in pairs that are neighbours along k, each pair one int32 lane. VDPBF16PS multiplies pairs and adds both
products to a float32 lane; it takes subnormal numbers as zero (Intel's manual, volume 2). TVM passes no vectors of
bfloat16 to intrinsics, so small functions in LLVM IR do, which are inlined.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.tir_math import V, typed

FEATURE = "avx512bf16"
LANES = 16

FUNCTIONS = """target triple = "x86_64-unknown-linux-gnu"
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
define <16 x float> @tg_add_pairs(<16 x float> %sum, <16 x i32> %left, <16 x i32> %right) alwaysinline nounwind {
  %a = bitcast <16 x i32> %left to <32 x bfloat>
  %b = bitcast <16 x i32> %right to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sum, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}
define <16 x i32> @tg_to_pairs(<16 x float> %first, <16 x float> %second) alwaysinline nounwind {
  %both = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float> %second, <16 x float> %first)
  %r = bitcast <32 x bfloat> %both to <16 x i32>
  ret <16 x i32> %r
}
"""


def add_pairs(sums: t.Expr, left: t.Expr, right: t.Expr) -> t.Expr:
    """`sums` (16 floats) plus the products of the pairs in `left` and `right` (16 int32 each)."""
    return t.external(typed("float32", LANES), "tg_add_pairs", sums, left, right)


def convert_row(e: Emitter, source: t.Buffer, start: t.Expr, target: t.Buffer, place: t.Expr, depth: int) -> None:
    """`depth` floats of `source` from `start` as pairs of bfloat16 from `place` of `target`, rounded half to even.

    Whole vectors are written: what is past the end of the row is zero.
    """
    whole, rest = divmod(depth, 2 * LANES)
    if whole:
        with e.loop("k", whole) as k:
            at = e.share(t.Add(start, t.Mul(k, e.i64(2 * LANES))))
            halves = [e.read(source, "float32", t.Add(at, e.i64(half * LANES)), LANES) for half in (0, 1)]
            _store(e, target, t.Add(place, t.Mul(k, e.i64(LANES))), halves)
    if rest:
        part = e.local("part", "float32", 2 * LANES)
        for half in (0, 1):
            e.write(part, half * LANES, e.f32(0.0), LANES)
        with e.loop("c", rest) as c:
            e.write(part, c, e.read(source, "float32", t.Add(start, t.Add(c, e.i64(whole * 2 * LANES)))))
        halves = [e.math.share(e.read(part, "float32", half * LANES, LANES)) for half in (0, 1)]
        _store(e, target, t.Add(place, e.i64(whole * LANES)), halves)


def _store(e: Emitter, target: t.Buffer, place: t.Expr, halves: list[V]) -> None:
    pairs = t.external(typed("int32", LANES), "tg_to_pairs", *(v.expr for v in halves))
    e.write(target, place, V(pairs, "int32", LANES), LANES)
