"""Join kernels against numpy: channels that fill no blocks, upsampled parts, sums, one and two spatial dims, symbolic
extents; and what is no join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.numeric.codegen.runner import Array, Compiled, loaded
from tests.numeric.conv_kernels.conv_runner import blocks, plain
from tests.unit.fusion.parse import model
from tilegraph.codegen.conv.join import generate
from tilegraph.codegen.isa import Isa, host
from tilegraph.graph import GraphView
from tilegraph.ops.conv import blocked_shape, lower_join, plan_join
from tilegraph.ops.conv.join import JoinSpace
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.passes import PassContext
from tilegraph.rewrites.conv.channels import Channels, write_chosen
from tilegraph.rewrites.conv.join import join_of, write_join
from tilegraph.rewrites.conv.units import Twins
from tilegraph.rewrites.conv.write import BlockedWriter
from tilegraph.rewrites.normalise import NORMALISE

pytestmark = pytest.mark.skipif(host().vector_bits < 512, reason="this machine has no AVX-512")


def lowered(text: str, lanes: int = 16) -> tuple[Lowered, list[ir.Node]]:
    """The join that ends `text`, and its body."""
    graph = model(text)
    for step in NORMALISE:
        step.run(graph, PassContext())
    view = GraphView(graph.graph)
    last = view.nodes[-1]
    writer = BlockedWriter(Twins(lanes), lanes, 20)
    if last.op_type == "Gather":
        (chosen,) = Channels(view).found()
        write_chosen(writer, chosen)
    else:
        write_join(writer, join_of(last, view, set()))
    output = writer.blocked[last.outputs[0]]
    return lower_join(writer.nodes, [output], {"": 20}), writer.nodes


def run(text: str, feeds: dict[str, Array], channels: int, lanes: int = 16) -> Array:
    made, _ = lowered(text, lanes)
    isa = host() if lanes == 16 else Isa("x86-64-v3")
    kernel = generate(plan_join(made), "tg_test", isa.vector_bits)
    compiled = Compiled(made, None, kernel.kernel, *loaded(kernel, isa))  # type: ignore[arg-type]
    given = {name: blocks(a, lanes, np.nan) for name, a in feeds.items()}
    (got,) = compiled.run(given, 2, 4)
    compiled.check_fences(given, 2)
    if channels % lanes:
        assert not np.any(got[:, -1, ..., channels % lanes:]) or "Concat" not in text
    return plain(got, channels)


def part(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def repeated(a: Array, factors: Sequence[int]) -> Array:
    for axis, factor in enumerate(factors):
        a = np.repeat(a, factor, axis + 2)
    return a


def text_of(parts: Sequence[Array], factors: Sequence[Sequence[int]], op: str, names: str = "") -> str:
    """`names`: symbols for the extents, one group a part."""
    groups = names.split() or [""] * len(parts)
    heads, lines, values = [], [], []
    for k, (a, f, group) in enumerate(zip(parts, factors, groups, strict=True)):
        dims = [str(d) for d in a.shape]
        if group:
            dims = ["N", dims[1], *group]
        heads.append(f"float[{','.join(dims)}] p{k}")
        values.append(f"p{k}")
        if set(f) != {1}:
            scales = ", ".join(f"{v}." for v in (1, 1, *f))
            lines.append(f"s{k} = Constant<value = float[{len(f) + 2}] {{{scales}}}>() "
                         f"r{k} = Resize<coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\">"
                         f"(p{k}, , s{k}) ")
            values[-1] = f"r{k}"
    channels = sum(a.shape[1] for a in parts) if op == "Concat" else parts[0].shape[1]
    last = f"y = {op}{'<axis = 1>' if op == 'Concat' else ''}({', '.join(values)}) " if op else ""
    out = ",".join(["N", str(channels), *"ABC"[:parts[0].ndim - 2]])
    return (f"({', '.join(heads)}) => (float[{out}] {'y' if op else values[0]}) {{ {''.join(lines)}{last}}}")


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("channels", "sizes", "factors"), [
    ((24, 24, 24, 24), ((2, 3), (4, 6), (8, 12), (16, 24)), ((8, 8), (4, 4), (2, 2), (1, 1))),
    ((16, 32), ((5, 7), (5, 7)), ((1, 1), (1, 1))),
    ((1, 3, 17, 8), ((4, 6), (2, 6), (4, 2), (2, 3)), ((1, 1), (2, 1), (1, 3), (2, 2))),
    ((58, 58), ((3, 1), (3, 1)), ((1, 1), (1, 1))),
    ((20, 5), ((12,), (4,)), ((1,), (3,))),
])
def test_channels_one_after_the_other(channels: Any, sizes: Any, factors: Any, lanes: int) -> None:
    parts = [part(2, c, *s, seed=k) for k, (c, s) in enumerate(zip(channels, sizes, strict=True))]
    want = np.concatenate([repeated(a, f) for a, f in zip(parts, factors, strict=True)], 1)
    feeds = {f"p{k}": a for k, a in enumerate(parts)}
    np.testing.assert_array_equal(run(text_of(parts, factors, "Concat"), feeds, sum(channels), lanes), want)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("channels", "sizes", "factors"), [
    (24, ((4, 6), (2, 3)), ((1, 1), (2, 2))), (33, ((2, 2), (3, 6)), ((3, 6), (2, 2))), (8, ((9,), (3,)), ((1,), (3,))),
])
def test_sums_with_upsampled_values(channels: int, sizes: Any, factors: Any, lanes: int) -> None:
    parts = [part(3, channels, *s, seed=k) for k, s in enumerate(sizes)]
    want = repeated(parts[0], factors[0]) + repeated(parts[1], factors[1])
    feeds = {f"p{k}": a for k, a in enumerate(parts)}
    np.testing.assert_array_equal(run(text_of(parts, factors, "Add"), feeds, channels, lanes), want)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("sizes", "order"), [
    ((58, 58), [*range(1, 58, 2), *range(58, 116, 2)]),
    ((58, 58), np.arange(116).reshape(2, 58).T.reshape(-1)[58:].tolist()),
    ((240,), np.arange(240).reshape(3, 80).T.reshape(-1).tolist()),
    ((112,), list(range(98, 112))), ((5, 40), [44, 0, 0, 17, 3]), ((64,), list(range(16, 64))), ((20,), [19]),
])
def test_channels_that_are_chosen(sizes: Any, order: list[int], lanes: int) -> None:
    parts = [part(2, c, 3, 5, seed=k) for k, c in enumerate(sizes)]
    places = ", ".join(map(str, order))
    head = ", ".join(f"float[2,{c},3,5] p{k}" for k, c in enumerate(sizes))
    text = (f"({head}) => (float[2,{len(order)},3,5] y) {{ i = Constant<value = int64[{len(order)}] {{{places}}}>() "
            f"c = Concat<axis = 1>({', '.join(f'p{k}' for k in range(len(sizes)))}) y = Gather<axis = 1>(c, i) }}")
    got = run(text, {f"p{k}": a for k, a in enumerate(parts)}, len(order), lanes)
    np.testing.assert_array_equal(got, np.concatenate(parts, 1)[:, order])


def test_upsampling_alone() -> None:
    a = part(2, 20, 3, 5, seed=0)
    np.testing.assert_array_equal(run(text_of([a], [(2, 3)], ""), {"p0": a}, 20), repeated(a, (2, 3)))


def test_symbolic_extents_and_what_the_run_has_to_check() -> None:
    parts = [part(2, 24, 8, 12, seed=0), part(2, 8, 4, 6, seed=1)]
    text = text_of(parts, [(1, 1), (2, 2)], "Concat", "HW hw")
    want = np.concatenate([parts[0], repeated(parts[1], (2, 2))], 1)
    np.testing.assert_array_equal(run(text, {"p0": parts[0], "p1": parts[1]}, 32), want)
    space = plan_join(lowered(text)[0])
    assert [(str(a), str(b)) for a, b in space.equal] == [("H", "2*h"), ("W", "2*w")]


def test_extents_that_cannot_be_equal_are_refused() -> None:
    parts = [part(2, 24, 8, 12, seed=0), part(2, 8, 4, 6, seed=1)]
    made, _ = lowered(text_of(parts, [(1, 1), (2, 2)], "Concat").replace("[2,8,4,6]", "[2,8,h,6]"))
    assert isinstance(plan_join(made), JoinSpace)
    with pytest.raises(Decline, match=r"extents \S+ and \S+ are joined"):  # 1 and 2*h: the sum may be a broadcast
        plan_join(lowered(text_of([part(2, 8, 1, 6, seed=0), parts[1]], [(1, 1), (2, 2)], "Add", "1W hw"))[0])
    with pytest.raises(Decline, match="extents 12 and 10 are joined"):
        plan_join(lowered(text_of(parts, [(1, 1), (2, 2)], "Concat", "HW hw").replace("H,W]", "H,12]").replace(
            "h,w]", "h,5]"))[0])


@pytest.mark.parametrize(("spoil", "why"), [
    (lambda nodes, out: next(n for n in nodes if n.op_type == "Transpose").attributes.add(
        ir.AttrInt64s("perm", [0, 3, 2, 1, 4])), "brought out of blocks"),
    (lambda nodes, out: nodes[-1].attributes.add(ir.AttrInt64s("perm", [0, 3, 2, 1, 4])), "brought into blocks"),
    (lambda nodes, out: next(n for n in nodes if n.op_type == "Concat").attributes.add(ir.AttrInt64("axis", 2)),
     "Concat joins no values"),
])
def test_other_bodies_are_no_joins(spoil: Any, why: str) -> None:
    parts = [part(1, 24, 4, 4, seed=0), part(1, 24, 4, 4, seed=1)]
    _, nodes = lowered(text_of(parts, [(1, 1), (1, 1)], "Concat"))
    spoil(nodes, nodes[-1].outputs[0])
    with pytest.raises(Decline, match=why):
        lower_join(nodes, [nodes[-1].outputs[0]], {"": 20})


def test_blocked_shapes_are_those_of_the_layout() -> None:
    made, nodes = lowered(text_of([part(1, 24, 4, 4, seed=0)] * 2, [(1, 1), (1, 1)], "Concat"))
    assert [d.as_int() for d in made.outputs[0].shape] == list(blocked_shape(ir.Shape([1, 48, 4, 4]), 16))
    assert [n.op_type for n in nodes if n.op_type == "Concat"] == ["Concat"]
