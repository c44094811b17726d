"""Sums of four products of bytes, unsigned by signed, exactly: what the instruction sets have for it.

VPDPBUSD adds them to an int32 lane without saturation (AVX512-VNNI, AVX-VNNI). Without it bytes are widened to 16
bits, the even ones and the odd ones of a lane by themselves, and VPMADDWD multiplies pairs. VPMADDUBSW would take the
bytes as they are, but saturates at 16 bits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.tir_math import V, typed

VNNI = {512: "avx512vnni", 256: "avxvnni"}


@dataclass(frozen=True)
class Dots:
    """`dot(sums, unsigned, signed)` on vectors of `bits` bits, each operand as int32 lanes of four bytes."""

    e: Emitter
    bits: int
    feature: str  # "" where there is no instruction

    @staticmethod
    def choose(e: Emitter, bits: int, features: Collection[str]) -> Dots:
        return Dots(e, bits, VNNI[bits] if VNNI.get(bits) in features else "")

    @property
    def features(self) -> tuple[str, ...]:
        return (self.feature,) if self.feature else ()

    @property
    def lanes(self) -> int:
        return self.bits // 32

    def dot(self, sums: t.Expr, unsigned: t.Expr, signed: t.Expr) -> t.Expr:
        if self.feature:
            quads = (t.reinterpret(typed("int8", self.lanes * 4), x) for x in (unsigned, signed))
            return t.intrinsic(typed("int32", self.lanes), f"llvm.x86.avx512.vpdpbusd.{self.bits}", sums, *quads)
        m = self.e.math
        total = V(sums, "int32", self.lanes)
        a, b = (m.share(V(x, "int32", self.lanes)) for x in (unsigned, signed))
        for odd in (False, True):
            total = m.add(total, V(self.pairs(self._widened(a, odd, False), self._widened(b, odd, True)), "int32",
                                   self.lanes))
        return total.expr

    def pairs(self, a: t.Expr, b: t.Expr) -> t.Expr:
        """Products of 16-bit integers, of both in an int32 lane the sum; operands as int32 lanes."""
        halves = typed("int16", self.lanes * 2)
        name = {512: "llvm.x86.avx512.pmaddw.d.512", 256: "llvm.x86.avx2.pmadd.wd"}[self.bits]
        return t.intrinsic(typed("int32", self.lanes), name, t.reinterpret(halves, a), t.reinterpret(halves, b))

    def _widened(self, value: V, odd: bool, signed: bool) -> t.Expr:
        """Every other byte of `value` as 16 bits."""
        m = self.e.math
        dtype = "int16" if signed else "uint16"
        halves = m.bitcast(V(t.reinterpret(typed(dtype, value.lanes * 2), value.expr), dtype, value.lanes * 2), dtype)
        eight = m.const(8, dtype)
        if not odd:
            halves = m.shl(halves, eight)
        found = m.shr(halves, eight)
        return t.reinterpret(typed("int32", value.lanes), found.expr)
