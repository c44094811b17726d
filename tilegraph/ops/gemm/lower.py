"""From the nodes of a product and its epilogue to their space.

The nodes are lowered as those of a region are, with the product as one more operator, so the epilogue may be spelled in
any way: what counts is the computation that remains. Its loops are those of the output; views between the product and
the output, such as the split into heads, become the addresses of the stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from tilegraph.ops.broadcast import broadcast, project
from tilegraph.ops.gemm.space import GemmSpace, Product
from tilegraph.ops.index import Ix, SplitNeeded, Var, flat_address
from tilegraph.ops.lower import Rule, lower_region
from tilegraph.ops.lower.base import NodeContext, point
from tilegraph.ops.lower.views import transpose
from tilegraph.ops.prims import Const, Decline, Dot, Extent, Input, Lowered, Point, Position, Prim, View
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place
from tilegraph.spec.dims import Dim

LANES = 16  # the widest vectors; a view must not cut one
_SPLITS = 12


def _matmul(c: NodeContext) -> list[Prim]:
    return [_dot(c, c.arg(0), c.arg(1))]


def _dot(c: NodeContext, left: Prim, right: Prim) -> Dot:
    if len(left.shape) < 2:
        raise c.decline("a product with a vector")
    if len(right.shape) != 2:
        raise c.decline(f"the matrix has {len(right.shape)} dims; kernels take 2")
    if left.dtype != "float32" or right.dtype != "float32":
        raise c.decline(f"a product of {left.dtype}: kernels are float32")
    if left.shape[-1] != right.shape[-2]:
        raise c.decline(f"extents {left.shape[-1]} and {right.shape[-2]} are not equal for certain")
    return Dot((*left.shape[:-1], right.shape[-1]), left.dtype, left=left, right=right)


def _gemm(c: NodeContext) -> list[Prim]:
    """alpha = beta = 1 and transA = 0."""
    if c.attr("transA", 0) or c.attr("alpha", 1.0) != 1.0 or c.attr("beta", 1.0) != 1.0:
        raise c.decline("Gemm with transA, alpha or beta")
    right = transpose(c.arg(1), [1, 0]) if c.attr("transB", 0) else c.arg(1)
    made = _dot(c, c.arg(0), right)
    bias = c.optional(2)
    if bias is None and (len(c.node.inputs) < 3 or c.node.inputs[2] is None):
        return [made]
    bias = c.arg(2)
    if broadcast([made.shape, bias.shape]) != made.shape:
        raise c.decline("a bias that is larger than the product")
    return [point("Add", [made, bias], "float32")]


PRODUCTS: dict[tuple[str, str], Rule] = {("", "MatMul"): _matmul, ("", "Gemm"): _gemm}


def lower_gemm(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) -> Lowered:
    """Lowers `nodes` (in topological order) as a region with one product; `Decline` with the reason."""
    return lower_region(nodes, outputs, opsets, PRODUCTS)


def plan_gemm(lowered: Lowered) -> GemmSpace:
    """The space of the product and epilogue that `lowered` is, or `Decline` with what it is not."""
    if lowered.stored != ("float",):
        raise Decline(f"a product stored as {', '.join(lowered.stored)}: kernels are float32")
    puller = _Puller(lowered.outputs[0])
    for _ in range(_SPLITS):
        try:
            return puller.build()
        except SplitNeeded as split:
            puller.split(split.var, split.inner)
    raise Decline("the index maps of its views have no common refinement")


class _Puller:
    """Evaluates prims at the loops of the output."""

    def __init__(self, root: Prim) -> None:
        self.root = root
        self.vars: list[Var] = []
        self.index: list[Ix] = []
        for axis, extent in enumerate(root.shape):
            if extent == 1:
                self.index.append(Ix())
            else:
                self.vars.append(Var(f"i{axis}", extent))
                self.index.append(Ix.of(self.vars[-1]))

    def split(self, var: Var, inner: Dim) -> None:
        outer_extent = var.extent.exact_div(inner)
        if outer_extent is None or var not in self.vars:
            raise Decline(f"a view splits the loop over {var.extent} elements")
        outer, inside = Var(var.name + "o", outer_extent), Var(var.name + "i", inner)
        whole = Ix.of(outer) * inner + Ix.of(inside)
        self.index = [ix.replace({var: whole}) for ix in self.index]
        at = self.vars.index(var)
        self.vars[at:at + 1] = [outer, inside]

    def build(self) -> GemmSpace:
        self.memo: dict[tuple[int, tuple[Ix, ...]], Inst] = {}
        self.products: dict[tuple[int, tuple[Ix, ...]], tuple[Dot, tuple[Ix, ...], Product]] = {}
        value = self.pull(self.root, tuple(self.index))
        if len(self.products) != 1:
            raise Decline("no product is in it" if not self.products else "it reads more than one product, or one at "
                          "more than one place")
        ((dot, at, _),) = self.products.values()
        if Dim.product(dot.shape) != Dim.product(self.root.shape):
            raise Decline("the result has more elements than the product")
        rows = _digits(flat_address(at[:-1], dot.shape[:-1]), self.vars, "rows")
        cols = _digits(at[-1], self.vars, "columns")
        if set(rows) & set(cols) or set(rows) | set(cols) != set(self.vars) or not cols:
            raise Decline("rows and columns of the product are not loops of the result")
        k = Var("k", dot.left.shape[-1])
        depth, width = k.extent.as_int(), dot.shape[-1].as_int()
        if depth is None or width is None:
            raise Decline("the matrix has a symbolic extent")
        self.products.clear()
        left = self.pull(dot.left, (*project(at[:-1], dot.left.shape[:-1]), Ix.of(k)))
        if self.products or not isinstance(left, Load) or left.stored != "float":
            raise Decline("the left operand is computed inside the kernel")
        if left.address.coef(k) != 1 or k in left.address.hidden() or left.address.vars() & set(cols):
            raise Decline("the left operand is not contiguous along the summed dim")
        right, transposed = dot.right, False
        if isinstance(right, View) and right.key == "transpose[1, 0]":
            right, transposed = right.source, True
        if not isinstance(right, Input) or right.stored != "float":
            raise Decline("the matrix is computed inside the kernel")
        rows, value, places = _merge_rows(rows, value, (left.address, flat_address(self.index, self.root.shape)))
        space = GemmSpace(rows, cols, k, Dim.product(dot.shape[:-1]), width, depth, places[0], left.slot, right.slot,
                          transposed, value, places[1])
        _check(space)
        return space

    def pull(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        key = (id(prim), at)
        if key not in self.memo:
            self.memo[key] = self._pull(prim, at)
        return self.memo[key]

    def _pull(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        match prim:
            case Input():
                return Load(prim.dtype, prim.slot, prim.stored, flat_address(project(at, prim.shape), prim.shape))
            case Const():
                return Literal(prim.dtype, prim.value)
            case Extent():
                return Place(prim.dtype, Ix.of(prim.dim))
            case Position():
                return Place(prim.dtype, at[prim.axis])
            case Point():
                return Apply(prim.dtype, prim, tuple(self.pull(p, project(at, p.shape)) for p in prim.operands))
            case View():
                return self.pull(prim.source, prim.pull(at))
            case Dot():
                leaf = Product(prim.dtype)
                self.products[id(prim), at] = prim, at, leaf
                return leaf
        raise Decline(f"a {type(prim).__name__.lower()} follows the product")


def _digits(number: Ix, loops: Sequence[Var], what: str) -> tuple[Var, ...]:
    """The loops of which `number` is the mixed radix number, outermost first."""
    if number.const != 0 or any(not isinstance(a, Var) for a, _ in number.terms):
        raise Decline(f"the {what} of the product are not in order in the result")
    left = {a: c for a, c in number.terms if isinstance(a, Var)}
    found: list[Var] = []
    stride = Dim.of(1)
    while left:
        step = next((v for v in loops if left.get(v) == stride), None)
        if step is None:
            raise Decline(f"the {what} of the product are not in order in the result")
        del left[step]
        found.insert(0, step)
        stride = stride * step.extent
    return tuple(found)


def _insts(root: Inst) -> list[Inst]:
    """Every value below `root` once, operands first."""
    done: dict[int, Inst] = {}
    stack: list[tuple[Inst, bool]] = [(root, False)]
    while stack:
        inst, ready = stack.pop()
        if id(inst) in done:
            continue
        if ready:
            done[id(inst)] = inst
        else:
            stack.append((inst, True))
            stack.extend((a, False) for a in reversed(inst.args))
    return list(done.values())


def _merge_rows(rows: tuple[Var, ...], value: Inst, places: tuple[Ix, ...]) \
        -> tuple[tuple[Var, ...], Inst, tuple[Ix, ...]]:
    """Merges neighbouring row loops that every address walks as one."""
    while True:
        found = [i.address for i in _insts(value) if isinstance(i, Load)]
        found += [i.index for i in _insts(value) if isinstance(i, Place)]
        found += places
        hidden = set().union(*(ix.hidden() for ix in found))
        for at in range(len(rows) - 1):
            outer, inner = rows[at:at + 2]
            if not {outer, inner} & hidden and all(ix.coef(outer) == ix.coef(inner) * inner.extent for ix in found):
                break
        else:
            return rows, value, places
        one = Var(outer.name + inner.name, outer.extent * inner.extent)
        mapping = {outer: Ix(), inner: Ix.of(one)}
        rows = (*rows[:at], one, *rows[at + 2:])
        value = _replaced(value, mapping)
        places = tuple(ix.replace(mapping) for ix in places)


def _replaced(root: Inst, mapping: Mapping[Var, Ix]) -> Inst:
    done: dict[int, Inst] = {}
    for inst in _insts(root):
        match inst:
            case Load():
                done[id(inst)] = Load(inst.dtype, inst.slot, inst.stored, inst.address.replace(mapping))
            case Place():
                done[id(inst)] = Place(inst.dtype, inst.index.replace(mapping))
            case Apply():
                done[id(inst)] = Apply(inst.dtype, inst.point, tuple(done[id(a)] for a in inst.operands))
            case _:
                done[id(inst)] = inst
    return done[id(root)]


def _check(space: GemmSpace) -> None:
    """Vectors along the last column loop must be contiguous or constant wherever they are used, and whole."""
    lanes = space.cols[-1]
    if len(space.cols) > 1:
        extent = lanes.extent.as_int()
        if extent is None or extent % LANES:
            raise Decline(f"a view cuts the columns into pieces of {lanes.extent}, which is no multiple of {LANES}")
    for inst in _insts(space.value):
        if isinstance(inst, Load):
            if lanes in inst.address.hidden() or inst.address.coef(lanes) not in (Dim.of(0), Dim.of(1)):
                raise Decline("an operand of the epilogue is not contiguous along the columns")
            if inst.slot == space.right_slot:
                raise Decline("the epilogue reads the matrix too")
        elif isinstance(inst, Place) and lanes in inst.index.hidden():
            raise Decline("the epilogue divides the column index")
    if lanes in space.address.hidden() or space.address.coef(lanes) != 1:
        raise Decline("the result is not contiguous along the columns")
    if space.left_slot == space.right_slot:
        raise Decline("both operands are the same tensor")
