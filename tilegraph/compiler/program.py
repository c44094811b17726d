"""A partition as a program: one kernel call per composite, intermediates in an arena."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from tilegraph.codegen.generated import Kernel
from tilegraph.codegen.kernels import KernelStore
from tilegraph.compiler.packing import Packer
from tilegraph.compiler.rounds import Local, find_rounds, lifetimes
from tilegraph.memory import Buffer, plan
from tilegraph.ops.attention import PARTIAL, TABLE, lower_attention, plan_attention
from tilegraph.ops.conv import lower_conv, lower_join
from tilegraph.ops.dtypes import BYTES, stored_name
from tilegraph.ops.gemm import lower_gemm
from tilegraph.ops.lower import lower_region, prims_of, reports
from tilegraph.ops.lower.base import shape_of
from tilegraph.ops.lower.extents import Renames, divided
from tilegraph.ops.prims import Decline, Input, Lowered
from tilegraph.spec.artifact import KernelCall, Program, Rounds, Slot, TensorSpec
from tilegraph.spec.dims import Dim, Shape
from tilegraph.spec.schedule import DEFAULT


@dataclass(frozen=True)
class Built:
    """A program with the outside values that its inputs and outputs stand for."""

    program: Program
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


@dataclass(frozen=True)
class _Step:
    """One call of a kernel of a composite, and the outside value behind each of the kernel's pointers."""

    kernel: Kernel
    reads: tuple[ir.Value, ...]
    writes: tuple[ir.Value, ...]
    shapes: tuple[Shape, ...]  # of writes
    name: str  # what errors of a run call it; "" where there are none


def build(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], functions: Mapping[tuple[str, str, str], ir.Function],
          store: KernelStore, packer: Packer | None = None) -> Built:
    """Compiles the composites `nodes` (in order) into a program that makes `outputs`.

    `packer` makes the matrices that kernels read packed; one for a model, so that a matrix is packed once.

    Raises `Decline` if an extent cannot be known from the inputs.
    """
    packer = packer or Packer()
    once = functools.cache(lowered_of)  # equal composites call one function
    steps = [step for node in nodes for function in [functions[node.op_identifier()]]
             for step in _steps(node, function, *once(function), store, packer)]
    made = {v for step in steps for v in step.writes}
    inputs = list(dict.fromkeys(v for step in steps for v in step.reads if v not in made))
    shapes = {v: shape for step in steps for v, shape in zip(step.writes, step.shapes, strict=True)}
    symbols = _Symbols(inputs)
    for value, shape in shapes.items():
        symbols.learn(value, shape)
    inner = [v for v in shapes if v not in set(outputs)]
    known = {v: symbols.shape(shape) for v, shape in shapes.items()}
    rounds, local = find_rounds(steps, known, set(outputs), symbols.dim, symbols.bound)
    arena = plan(_lifetimes(inner, steps, known, rounds, local))
    places: dict[ir.Value, Slot] = {v: Slot("input", Dim.of(k)) for k, v in enumerate(inputs)}
    places |= {v: Slot("output", Dim.of(k)) for k, v in enumerate(outputs)}
    places |= {v: Slot("arena", arena.offsets[_buffer_name(k)],
                       local[v].item if v in local else Dim.of(0)) for k, v in enumerate(inner)}
    calls = tuple(_call(step, places, symbols) for step in steps)
    program = Program(
        tuple(TensorSpec(v.name or "", stored_name(v.dtype), symbols.shape(shape_of(v)), _constant(v)) for v in inputs),
        tuple(TensorSpec(v.name or "", stored_name(v.dtype), known[v]) for v in outputs),
        arena.total, calls, _equal(steps, symbols), rounds)
    symbols.check(program)
    return Built(program, tuple(inputs), tuple(outputs))


# By kind of composite, the first part of its function's name: how its body is lowered.
_LOWERINGS: dict[str, Callable[[Sequence[ir.Node], Sequence[ir.Value], Mapping[str, int]], Lowered]] = {
    "Region": lower_region,
    "Small": lower_region,
    "Attention": lower_attention,
    "AttentionTrust": lower_attention,
    "Gemm": lower_gemm,
    "Conv": lower_conv,
    "ConvFast": lower_conv,
    "Pool": lower_conv,
    "Join": lower_join,
}


def lowered_of(function: ir.Function) -> tuple[str, Lowered]:
    """The kind of a composite, and its body lowered. Raises `Decline`."""
    kind = function.name.partition("_")[0]
    return kind, _LOWERINGS[kind](list(function), list(function.outputs), function.opset_imports)


def _steps(node: ir.Node, function: ir.Function, kind: str, lowered: Lowered, store: KernelStore,
           packer: Packer) -> list[_Step]:
    """The kernel of the composite `node`, a call of `function`. Of attention also those that say what blocks of masks
    hold and make its caches before, and the one that adds up the pieces into which tasks may cut the keys."""
    position = {value: k for k, value in enumerate(function.inputs)}
    sources = {slot: node.inputs[position[value]] for slot, value in lowered.inputs if value in position}
    results = list(zip(node.outputs, (prim.shape for prim in lowered.outputs), strict=True))
    kinds = [kind]
    schedule = store.schedules.get(function.name, DEFAULT)
    space = plan_attention(lowered) if kind in ("Attention", "AttentionTrust") else None

    def between(slot: int, what: str, size: Dim) -> None:
        """What one of the kernels leaves for another. A vector; how long it is only the call knows."""
        value = ir.Value(name=f"{node.name}_{what}", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))
        sources[slot] = value
        results.append((value, (size,)))

    if space is not None and space.caches_apart:
        kinds.insert(0, "AttentionCache")
    if space is not None and space.pieces > 1:
        between(PARTIAL, "pieces", space.partial)
        kinds.append("AttentionSum")
    if space is not None and space.tables:
        between(TABLE, "table", replace(space, schedule=schedule).table)
        kinds.insert(0, "AttentionTable")
    name = (node.name or "") if reports(lowered) else ""
    chosen = {kind: schedule, "AttentionTable": schedule}
    return [_step(store.kernel(lowered, one, chosen.get(one, DEFAULT)), lowered, sources, results, packer, name)
            for one in kinds]


def _step(kernel: Kernel, lowered: Lowered, sources: Mapping[int, ir.Value | None],
          results: Sequence[tuple[ir.Value, Shape]], packer: Packer, name: str) -> _Step:
    packed = {how.slot: how for how in kernel.packed}
    filters = dict(kernel.filters)
    reads = []
    for slot in kernel.slots:
        outside = sources[slot]
        assert outside is not None
        if slot in packed:
            matrices = [k for k, _ in packed[slot].matrices]
            values = [value for k in matrices if (value := sources[k]) is not None]
            outside = packer.packed(values, packed[slot], [_extents(lowered, k) for k in matrices])
        elif slot in filters:
            outside = packer.filters(outside, filters[slot])
        reads.append(outside)
    made = [results[k] for k in kernel.outputs]
    return _Step(kernel, tuple(reads), tuple(v for v, _ in made), tuple(shape for _, shape in made), name)


def _extents(lowered: Lowered, slot: int) -> tuple[int, ...]:
    """The constant shape with which a kernel reads the input `slot`."""
    shape = next(p.shape for p in prims_of(lowered) if isinstance(p, Input) and p.slot == slot)
    return tuple(int(d.as_int() or 0) for d in shape)


def _constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


class _Symbols:
    """Which symbols the program's inputs bind, and dims in terms of them.

    A dim such as "past+seq" whose parts no input binds is one symbol of that name, as in `lower_region`; of "4*batch",
    batch is a quarter, without a rest (`exact`: pairs that must be equal for it).
    """

    def __init__(self, inputs: Sequence[ir.Value]) -> None:
        dims = [d for v in inputs for d in shape_of(v)]
        self.bound = {name for d in dims if (name := d.bare_symbol) is not None}
        unknown = {s for d in dims for s in d.symbols} - self.bound
        self.renames = Renames(dims, unknown)
        self.bound |= {s for known in self.renames.values() for s in known.symbols}
        parts = divided(self.renames, unknown)
        self.parts = {symbol: part for symbol, (_, part) in parts.items()}
        self.exact = [(self.renames[d], d.substitute({symbol: part})) for symbol, (d, part) in parts.items()]

    def dim(self, dim: Dim) -> Dim:
        dim = self.renames.of(dim)
        unknown = {s: self.parts.get(s) or self._named(s) for s in dim.symbols if s not in self.bound}
        return dim.substitute(unknown) if unknown else dim

    def _named(self, symbol: str) -> Dim:
        """A kernel's name of an extent says what that is made of, which the program may know."""
        dim = Dim.of(symbol)
        return dim if dim.bare_symbol is not None else self.dim(dim)

    def learn(self, value: ir.Value, shape: Shape) -> None:
        """What the kernel that makes `value` says of extents whose parts no input binds (behind a stride, say)."""
        for inferred, made in zip(shape_of(value), self.shape(shape), strict=True):
            if not inferred.symbols <= self.bound:
                self.renames.learn(inferred, made)

    def shape(self, shape: Shape) -> Shape:
        return tuple(self.dim(d) for d in shape)

    def check(self, program: Program) -> None:
        used: set[str] = set()
        for spec in (*program.inputs, *program.outputs):
            for dim in spec.shape:
                used |= dim.symbols
        for pair in program.equal:
            used |= pair[0].symbols | pair[1].symbols
        for call in program.calls:
            for dim in (*call.sizes, call.extent, call.grain, call.scratch):
                used |= dim.symbols
            for slot in call.args:
                used |= slot.item.symbols
        for rounds in program.rounds:
            used |= rounds.items.symbols | rounds.step.symbols
        if used - self.bound:
            raise Decline(f"the extent {min(used - self.bound)} is not known from the partition's inputs")


def _buffer_name(k: int) -> str:
    return f"b{k}"


def _lifetimes(inner: Sequence[ir.Value], steps: Sequence[_Step], shapes: Mapping[ir.Value, Shape],
               rounds: Sequence[Rounds], local: Mapping[ir.Value, Local]) -> list[Buffer]:
    buffers = []
    alive: dict[ir.Value, list[int]] = {}
    for n, step in enumerate(steps):
        for value in dict.fromkeys((*step.writes, *step.reads)):
            alive.setdefault(value, []).append(n)
    names: dict[Dim, str] = {}  # one for all rounds of one step, so that their values' sizes compare and share memory
    for r in rounds:
        names.setdefault(r.step, r.name)
    for k, value in enumerate(inner):
        size = Dim.product(shapes[value]) * BYTES[stored_name(value.dtype)]
        if value in local:
            size = local[value].item * Dim.symbol(names[local[value].rounds.step])
        buffers.append(Buffer(_buffer_name(k), size, *lifetimes(alive[value], rounds, value in local)))
    return buffers


def _equal(steps: Sequence[_Step], symbols: _Symbols) -> tuple[tuple[Dim, Dim], ...]:
    """What the kernels need to be equal, in the program's symbols."""
    pairs = [(symbols.dim(a), symbols.dim(b)) for step in steps for a, b in step.kernel.equal] + symbols.exact
    return tuple(dict.fromkeys((a, b) for a, b in pairs if a != b))


def _call(step: _Step, places: Mapping[ir.Value, Slot], symbols: _Symbols) -> KernelCall:
    kernel = step.kernel
    return KernelCall(kernel.symbol, tuple(places[v] for v in (*step.reads, *step.writes)),
                      tuple(symbols.dim(Dim.symbol(s)) for s in kernel.sizes), symbols.dim(kernel.extent),
                      symbols.dim(kernel.grain), kernel.align, symbols.dim(kernel.scratch), step.name)
