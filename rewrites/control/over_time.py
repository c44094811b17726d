"""Products of the body that do not depend on the state are computed for all steps at once, before the loop.

    y_i = f(x[i])   =   (f over the rows of x)[i]                          Loop: x[i] is Gather(x, i), i any number
    y_i = f(x_i)    =   the scanned input f(x)                             Scan

for every f that takes each step by itself: a product with a captured matrix, element-wise operators whose other
operands are captured and broadcast the same with a leading axis, and views of a step. Gather then takes the same step
of the result, whatever i is, so it is exact for any index and fails where it failed. That it pays takes more: every
step is read, once. Then T products of B rows, of which each reads the whole matrix, are one product of T B rows.

`Steps` finds what can move and writes it. A value of the body that is f(x[i]) has a `Clock`: values of equal clocks are
of the same step, so f may combine them. Outside, steps are the first axis: [T, *shape of the step].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced

import onnx_ir as ir

from tilegraph.io.walk import subgraphs_of
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.control.certain import ints_of, may_fail
from tilegraph.rewrites.control.loops import Position, body_of, position, trips
from tilegraph.rewrites.control.step_rules import rule_of
from tilegraph.rewrites.normalise.edit import Names, is_op, is_used, remove, replace
from tilegraph.rewrites.normalise.infer.arith import is_nonnegative
from tilegraph.rewrites.normalise.infer.info import shape_of
from tilegraph.spec.dims import Dim

_PRODUCTS = ("MatMul", "Gemm")
_UNREAD = 8  # steps of x that no iteration reads and that are computed nevertheless
_MOST_BYTES = 256 << 20  # of a result for all steps
_STEP_BYTES = 1 << 20  # of a step, where the number of steps is not known; extents that are not either count as 1


@dataclass(frozen=True)
class Clock:
    """Which step. `at`: the number of the iteration in a Loop, the direction of the scanned input in a Scan."""

    at: Position | int
    length: Dim


@dataclass(frozen=True)
class Source:
    """A step of `x`, along `axis`. `kept`: the axis is left with an extent of 1. `index` is of one element."""

    x: ir.Value
    axis: int
    kept: bool
    index: ir.Value | None = None  # None in a Scan


class Steps:
    def __init__(self, node: ir.Node, names: Names, root: ir.Graph) -> None:
        self.node, self.body, self.root = node, body_of(node), root
        self.build = Build(node, names, root.opset_imports.get("", 1))
        self.clocks: dict[ir.Value, Clock] = {}
        self.sources: dict[ir.Value, Source] = {}
        self.reasons: dict[ir.Value, str] = {}  # why a value is not of a clock, where its state is not the reason
        self.inside: set[ir.Value] = set(self.body.inputs)
        self.written: dict[ir.Value, ir.Value] = {}
        if is_op(node, "Scan"):
            self._scanned()
        for inner in self.body:
            self._visit(inner)
            self.inside.update(inner.outputs)

    # -- which values are of one step ---------------------------------------------------------------------------------

    def _scanned(self) -> None:
        count = self.build.attr("num_scan_inputs", 0)
        axes = self.build.attr("scan_input_axes", [0] * count)
        directions = self.build.attr("scan_input_directions", [0] * count)
        for step, x, axis, direction in zip(self.body.inputs[-count:], self.node.inputs[-count:], axes, directions,
                                            strict=True):
            shape = None if x is None else shape_of(x.shape)
            length = None if shape is None else shape[axis]
            if x is None or shape is None or length is None:
                self.reasons[step] = "the length of the sequence is not known"
                continue
            self.clocks[step] = Clock(direction, length)
            self.sources[step] = Source(x, axis % len(shape), kept=False)

    def _visit(self, node: ir.Node) -> None:
        found = self._source(node) if is_op(self.node, "Loop") else None
        if found is not None:
            (result,) = node.outputs
            clock = self._clock(found)
            if isinstance(clock, str):
                self.reasons[result] = clock
            else:
                self.clocks[result], self.sources[result] = clock, found
            return
        given = [v for v in node.inputs if v is not None]
        moving = [v for v in given if v in self.clocks]
        if not moving:
            reason = next((self.reasons[v] for v in given if v in self.reasons), None)
        else:
            reason = self._stays(node, moving)
        for result in node.outputs:
            if reason is not None:
                self.reasons[result] = reason
            elif moving and not any(self._of_state(v) for v in given):
                self.clocks[result] = self.clocks[moving[0]]

    def _of_state(self, value: ir.Value) -> bool:
        return value in self.inside and value not in self.clocks

    def _source(self, node: ir.Node) -> Source | None:
        """The step that `node` takes out of a captured value: by Gather, or as a slice of one."""
        x, index = (node.inputs[k] if k < len(node.inputs) else None for k in range(2))
        if is_op(node, "Squeeze") and x in self.sources:  # of a Slice, whose extent no inference knows to be 1
            whole = self.sources[x]
            return replaced(whole, kept=False) if whole.kept and ints_of(node, 1) == [whole.axis] else None
        shape = None if x is None else shape_of(x.shape)
        if x is None or index is None or x in self.inside or not shape or index not in self.inside:
            return None
        if is_op(node, "Gather"):
            axis = self._axis(node, 0) % len(shape)
            if index.shape is None or len(index.shape) > 1 or any(d != 1 for d in index.shape):
                return None
            return Source(x, axis, bool(len(index.shape)), index)
        if is_op(node, "Slice"):
            axes, steps = ints_of(node, 3), ints_of(node, 4)
            start, end = position(index, self.node), position(node.inputs[2], self.node)
            if axes is None or len(axes) != 1 or start is None or end != start.moved(Dim.of(1)) or (
                    steps != [1] and len(node.inputs) > 4):
                return None
            return Source(x, axes[0] % len(shape), True, index)
        return None

    def _axis(self, node: ir.Node, default: int) -> int:
        return node.attributes["axis"].as_int() if "axis" in node.attributes else default

    def _clock(self, source: Source) -> Clock | str:
        """When the step is taken, or why to compute all of them does not pay, or is not the same for a slice."""
        shape = shape_of(source.x.shape)
        length = None if shape is None else shape[source.axis]
        at = position(source.index, self.node)
        if at is None:
            return f"the index into {source.x.name} is not the number of the iteration"
        if length is None:
            return f"the extent of {source.x.name} along axis {source.axis} is not known"
        count = trips(self.node)
        if isinstance(count, str):
            return count
        unread = length - count
        if not unread.is_static or unread.value < 0 or unread.value > max(_UNREAD, count.as_int() or 0):
            return f"it runs {count} steps, and {source.x.name} has {length}"
        # A slice outside of x is empty, and one that starts at -1 ends at 0. Where there is a step, count - 1 >= 0.
        ends = (at.offset, at.offset + (count - 1) * at.sign)
        if source.kept and not all(is_nonnegative(room) or is_nonnegative(room - count + 1)
                                   for e in ends for room in (e, length - 1 - e)):
            return f"a slice of {source.x.name} may be outside of it"
        return Clock(at, length)

    def _stays(self, node: ir.Node, moving: Sequence[ir.Value]) -> str | None:
        """Why `node`, which reads `moving`, cannot be computed for all steps, where not its state is the reason."""
        rule = rule_of(node)
        if rule is None or len(node.outputs) != 1 or any(subgraphs_of(node)):
            return f"{node.op_type} {node.name} is not computed for all steps at once"
        if any(self._of_state(v) for v in node.inputs if v is not None):
            return None
        if len({self.clocks[v] for v in moving}) > 1:
            return f"{node.op_type} {node.name} reads two different steps"
        return may_fail(node) or rule.refusal(self, node) or self.too_large(node.outputs[0], self.clocks[moving[0]])

    def too_large(self, value: ir.Value, clock: Clock) -> str | None:
        """Why `value` is not computed for all steps: it would take too much memory, or nobody knows how much."""
        shape, dtype = shape_of(value.shape), value.dtype
        if shape is None or dtype is None or any(d is None for d in shape):
            return f"the shape of {value.name} is not known"
        step = int(dtype.itemsize)
        for dim in shape:
            step *= 1 if dim is None or not dim.is_static else dim.value
        known = clock.length.is_static and all(d is not None and d.is_static for d in shape)
        size, most = (step * clock.length.value, _MOST_BYTES) if known else (step, _STEP_BYTES)
        return None if size <= most else \
            f"{value.name} takes {size} bytes {'for all steps' if known else 'a step'}, more than {most}"

    # -- moving them --------------------------------------------------------------------------------------------------

    def move(self) -> list[ir.Node]:
        """Computes products, and what follows from them, before the loop; returns the products that left the body."""
        gone: list[ir.Node] = []
        reached: set[ir.Value] = set()
        inner = list(self.body)
        for node in inner:
            result = node.outputs[0]
            if result in self.clocks and result not in self.sources and (
                    is_op(node, *_PRODUCTS) or any(v in reached for v in node.inputs)):
                reached.add(result)
                gone += [node] if is_op(node, *_PRODUCTS) else []
        read = [v for v in reached if v.is_graph_output() or any(
            user.outputs[0] not in reached for user, _ in v.uses())]
        read.sort(key=[n.outputs[0] for n in inner].index)
        if not read:
            return []
        self._write(inner, read)
        graph = self.node.graph
        assert graph is not None
        for constant in self.build.constants:
            graph.register_initializer(constant)
        graph.insert_before(self.node, self.build.made)
        for value in read:
            (self._scan if is_op(self.node, "Scan") else self._gather)(value)
        for node in reversed(inner):
            if not any(is_used(v) for v in node.outputs) and node.outputs[0] in self.clocks:
                remove(node)
        if is_op(self.node, "Scan"):
            self._drop_scanned()
        return gone

    def refusals(self) -> list[tuple[ir.Node, str]]:
        """Products with captured matrices that stay in the body although no state leads to them, and why."""
        return [(n, self.reasons[n.outputs[0]]) for n in self.body
                if is_op(n, *_PRODUCTS) and n.outputs[0] in self.reasons and n.inputs[1] not in self.inside]

    def _write(self, inner: Sequence[ir.Node], read: Sequence[ir.Value]) -> None:
        """Computes the values `read`, and what they need, for all steps: [T, *shape]."""
        needed, pending = set(read), list(read)
        while pending:
            value = pending.pop()
            made = value.producer()
            if made is not None and value not in self.sources:
                more = {v for v in made.inputs if v is not None and v in self.clocks} - needed
                needed |= more
                pending += more
        for value in (*self.body.inputs, *(n.outputs[0] for n in inner)):
            if value in needed:
                made, source = value.producer(), self.sources.get(value)
                rule = None if made is None or source is not None else rule_of(made)
                if source is not None:
                    self.written[value] = self._all_steps(source)
                elif rule is not None and made is not None:
                    self.written[value] = rule.write(self, made)

    def operand(self, value: ir.Value) -> ir.Value:
        """What takes the place of `value` outside: all steps of it, [T, *shape], or itself if it is captured."""
        if value in self.clocks:
            return self.written[value]
        if value.is_initializer() and value.graph is self.body:
            lift_initializer(value, self.body, self.node.graph)
        return value

    def _all_steps(self, source: Source) -> ir.Value:
        b, axis = self.build, source.axis
        x = self.operand(source.x)
        assert x.shape is not None
        if axis:
            x = b.op("Transpose", x, perm=[axis, *(k for k in range(len(x.shape)) if k != axis)])
        return b.op("Unsqueeze", x, b.ints(axis + 1)) if source.kept else x

    def _gather(self, value: ir.Value) -> None:
        """The body reads its step of what was computed."""
        clock = self.clocks[value]
        index = next(s.index for v, s in self.sources.items() if self.clocks[v] == clock)
        made, names, at = [], self.build.names, value.producer()
        assert index is not None
        assert at is not None
        if index.shape is not None and len(index.shape):
            before = index.producer()
            if is_op(before, "Unsqueeze") and before is not None and before.inputs[0] is not None:
                index = before.inputs[0]
            else:
                zero = self.build.ints(0)
                self.body.register_initializer(zero)
                made.append(ir.node("Squeeze", [index, zero], name=names.node(f"{at.name}/at")))
                index = made[0].outputs[0]
                index.name = names.value(f"{at.name}/at_out")
        gather = ir.node("Gather", [self.written[value], index], attributes={"axis": 0},
                         name=names.node(f"{at.name}/step"))
        step = gather.outputs[0]
        step.name, step.type, step.shape = names.value(f"{value.name}_step"), value.type, value.shape
        self.body.insert_before(at, [*made, gather])
        replace(value, step, self.root)

    def _scan(self, value: ir.Value) -> None:
        """The body is given its step of what was computed."""
        node, clock = self.node, self.clocks[value]
        assert isinstance(clock.at, int)
        step = ir.Value(name=self.build.names.value(f"{value.name}_step"), type=value.type, shape=value.shape)
        count = self.build.attr("num_scan_inputs", 0)
        self._describe(count + 1, {"scan_input_axes": 0, "scan_input_directions": clock.at}, range(count))
        node.resize_inputs(len(node.inputs) + 1)
        node.replace_input_with(len(node.inputs) - 1, self.written[value])
        self.body.inputs.append(step)
        replace(value, step, self.root)

    def _describe(self, count: int, added: dict[str, int], kept: Sequence[int]) -> None:
        """Axes and directions of the scanned inputs `kept`, and of one that is added."""
        for name in ("scan_input_axes", "scan_input_directions"):
            given = self.build.attr(name, [0] * self.build.attr("num_scan_inputs", 0))
            more = [added[name]] if added else []
            self.node.attributes[name] = ir.AttrInt64s(name, [*(given[k] for k in kept), *more])
        self.node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", count)

    def _drop_scanned(self) -> None:
        """Leaves out scanned inputs that the body does not read any more."""
        node, body = self.node, self.body
        count = self.build.attr("num_scan_inputs", 0)
        first = len(body.inputs) - count
        given = list(body.inputs)[first:]
        kept = [k for k, step in enumerate(given) if is_used(step) or step not in self.sources]
        inputs, steps = [node.inputs[first + k] for k in kept], [given[k] for k in kept]
        self._describe(len(kept), {}, kept)
        del body.inputs[first:]
        body.inputs.extend(steps)
        for k, value in enumerate(inputs):
            node.replace_input_with(first + k, value)
        node.resize_inputs(first + len(kept))


def lift_initializer(value: ir.Value, body: ir.Graph, outer: ir.Graph | None) -> None:
    """A constant of `body` becomes one of the graph around it, which both can read."""
    assert outer is not None
    assert value.name is not None
    outer.register_initializer(body.initializers.pop(value.name))
