"""Dims and index expressions as TIR: integers over the size parameters and the loops of a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from tilegraph.codegen import tvm_compat as t
from tilegraph.ops.index import Dynamic, Ix, Quotient, Remainder, Var
from tilegraph.spec.dims import Dim, Opaque


class Extents:
    """`sizes`: the parameter of each symbol that was needed, in that order. `loops`: the value of each loop variable
    where code is emitted. `computed`: that of computed indices, where they are used. Everything is int64."""

    def __init__(self) -> None:
        self.sizes: dict[str, t.Var] = {}
        self.loops: dict[Var, t.Expr] = {}
        self.computed: dict[Dynamic, t.Expr] = {}

    def i64(self, value: int) -> t.Expr:
        return t.int_imm("int64", value)

    def dim(self, dim: Dim) -> t.Expr:
        """A dim as an expression over the size parameters."""
        total: t.Expr = None
        for mono, coef in dim.terms:
            term: t.Expr = None
            for atom in mono:
                factor = self._size(atom) if isinstance(atom, str) else self._opaque(atom)
                term = factor if term is None else t.Mul(term, factor)
            if term is None:
                term = self.i64(coef)
            elif coef != 1:
                term = t.Mul(term, self.i64(coef))
            total = term if total is None else t.Add(total, term)
        return self.i64(0) if total is None else total

    def _size(self, symbol: str) -> t.Var:
        if symbol not in self.sizes:
            self.sizes[symbol] = t.var(f"n{len(self.sizes)}", "int64")
        return self.sizes[symbol]

    def _opaque(self, atom: Opaque) -> t.Expr:
        args = [self.dim(a) for a in atom.args]
        if atom.op in ("//", "%"):
            return self._floored(atom, *args)
        node = t.Min if atom.op == "min" else t.Max
        result = args[0]
        for arg in args[1:]:
            result = node(result, arg)
        return result

    def _floored(self, atom: Opaque, left: t.Expr, right: t.Expr) -> t.Expr:
        """Rounded down below 0, too, as the plugin does: with a line of no elements (w - 1) // 2 + 1 is 0."""
        node = t.Div if atom.op == "//" else t.Rem
        low, divisor = atom.args[0].least, atom.args[1].as_int()
        if low is not None and low >= 0:
            return node(left, right)
        if low is not None and divisor is not None and divisor > 0:
            whole = -(low // divisor)
            result = node(t.Add(left, self.i64(whole * divisor)), right)
            return t.Sub(result, self.i64(whole)) if atom.op == "//" else result
        rest = t.Rem(left, right)
        below = t.LT(rest, self.i64(0))
        if atom.op == "%":
            return t.Select(below, t.Add(rest, right), rest)
        return t.Sub(t.Div(left, right), t.Select(below, self.i64(1), self.i64(0)))

    def index(self, ix: Ix, at: Mapping[Var, t.Expr] | None = None) -> t.Expr:
        """An index expression at the current loop values, or at others where `at` gives them."""
        total = self.dim(ix.const) if ix.const != 0 or not ix.terms else None
        for atom, coef in ix.terms:
            if isinstance(atom, Var):
                value = at[atom] if at and atom in at else self.loops[atom]
            elif isinstance(atom, Dynamic):
                value = self.computed[atom]
            else:
                assert isinstance(atom, (Quotient, Remainder))
                node = t.Div if isinstance(atom, Quotient) else t.Rem
                value = node(self.index(atom.of, at), self.dim(atom.by))
            term = value if coef == 1 else t.Mul(value, self.dim(coef))
            total = term if total is None else t.Add(total, term)
        return total
