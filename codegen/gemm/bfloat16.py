"""Products of bfloat16 with float32 sums, by the two instructions of AVX512-BF16.

Elements lie in pairs that are neighbours along k, each pair one int32 lane. VDPBF16PS multiplies pairs and adds both
products to a float32 lane; it takes subnormal numbers as zero (Intel's manual, volume 2). TVM passes no vectors of
bfloat16 to intrinsics, so small functions in LLVM IR do, which are inlined.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.gemm.converted import ConvertedRows
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V, typed
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.prims import Decline
from tilegraph.spec.dims import Dim

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


def generate(space: GemmSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, of precision bfloat16, as the function `name`. Raises `Decline` for other than 512 bits."""
    if vector_bits // 32 != LANES:
        raise Decline(f"products of bfloat16 need {FEATURE}")
    return _Pairs(space, vector_bits).run(name)


class _Pairs(ConvertedRows):
    """A converted row: pairs of elements, filled up to whole vectors."""

    def __init__(self, space: GemmSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits, -(-space.depth // 2))
        self.depth = -(-space.depth // 2)
        self.e.imports = FUNCTIONS

    def finish(self, name: str, memory: list[t.Buffer], *, extent: Dim, scratch: Dim, grain: Dim) -> Generated:
        return self.e.finish(name, [*memory, self.left], extent=extent, align=1, scratch=self.scratch, grain=grain,
                             packed=self.packed, features=(FEATURE,))

    def multiply(self, left: t.Expr, right: t.Expr, sums: t.Expr) -> t.Expr:
        return t.external(typed("float32", LANES), "tg_add_pairs", sums, left, right)

    def convert(self, start: t.Expr, place: t.Expr) -> None:
        """The row of floats at `start` as pairs from `place`, rounded half to even.

        Whole vectors are written: what is past the end of the row is zero.
        """
        e = self.e
        whole, rest = divmod(self.space.depth, 2 * LANES)
        if whole:
            with e.loop("k", whole) as k:
                at = e.share(t.Add(start, t.Mul(k, e.i64(2 * LANES))))
                halves = [e.read(self.source, "float32", t.Add(at, e.i64(h * LANES)), LANES) for h in (0, 1)]
                self._store(t.Add(place, t.Mul(k, e.i64(LANES))), halves)
        if rest:
            part = e.local("part", "float32", 2 * LANES)
            for h in (0, 1):
                e.write(part, h * LANES, e.f32(0.0), LANES)
            with e.loop("c", rest) as c:
                at = t.Add(start, t.Add(c, e.i64(whole * 2 * LANES)))
                e.write(part, c, e.read(self.source, "float32", at))
            halves = [e.math.share(e.read(part, "float32", h * LANES, LANES)) for h in (0, 1)]
            self._store(t.Add(place, e.i64(whole * LANES)), halves)

    def _store(self, place: t.Expr, halves: list[V]) -> None:
        pairs = t.external(typed("int32", LANES), "tg_to_pairs", *(v.expr for v in halves))
        self.e.write(self.left, place, V(pairs, "int32", LANES), LANES)
