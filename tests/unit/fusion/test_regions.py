"""Region fusion: what becomes one composite, and each reason why a node stays out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from tests.unit.fusion.parse import model
from tilegraph.cost import CostModel
from tilegraph.graph import GraphView, Reach
from tilegraph.ops.region import plan
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import RegionFusion, legal
from tilegraph.rewrites.fusion import grow as growth
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.rewrites.fusion.copies import Copies
from tilegraph.rewrites.fusion.grow import grow
from tilegraph.rewrites.fusion.legal import Candidate
from tilegraph.rewrites.fusion.verdicts import Verdicts


def fuse(graph: str, offload: str = "all", opset: int = 20) -> tuple[ir.Model, PassContext, bool]:
    made, context = model(graph, opset), PassContext()
    modified = RegionFusion(offload).run(made, context).modified
    return made, context, modified


def kinds(made: ir.Model) -> list[str]:
    return ["region" if n.domain == DOMAIN else n.op_type for n in made.graph]


def bodies(made: ir.Model) -> list[list[str]]:
    """The operators of each call's body, in the order of the calls."""
    return [[n.op_type for n in made.functions[call.op_identifier()] if n.op_type != "Constant"]
            for call in made.graph if call.domain == DOMAIN]


def refusal(context: PassContext, name: str) -> str:
    (found,) = [d.reason for d in context.diagnostics if not d.taken and d.subject == name]
    return found


WHOLE = {
    "tanh GELU": ("""(float[4,64] x, float[64] b) => (float[4,64] y) {
        u = Add(x, b) three = Constant<value = float {3.0}>() p = Pow(u, three)
        c = Constant<value = float {0.044715}>() q = Mul(p, c) r = Add(u, q) k = Constant<value = float {0.797885}>()
        s = Mul(r, k) t = Tanh(s) one = Constant<value = float {1.0}>() v = Add(t, one) w = Mul(u, v)
        h = Constant<value = float {0.5}>() y = Mul(w, h) }""", 9),
    "layer normalisation": ("""(float[4,64] x, float[64] g) => (float[4,64] y) {
        a = Constant<value = int64[1] {-1}>() m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, a)
        e = Constant<value = float {0.00001}>() w = Add(v, e) s = Sqrt(w) n = Div(d, s) y = Mul(n, g) }""", 8),
    "softmax with a mask": ("""(float[2,4,64] x, float[1,1,64] m) => (float[2,4,64] y) {
        z = Add(x, m) y = Softmax<axis=-1>(z) }""", 2),
    "rotary embedding": ("""(float[1,5,4,32] x, float[1,5,1,32] c, float[1,5,1,32] s) => (float[1,5,4,32] y) {
        a, b = Split<axis=-1, num_outputs=2>(x) n = Neg(b) r = Concat<axis=-1>(n, a) p = Mul(x, c) q = Mul(r, s)
        y = Add(p, q) }""", 6),
    "SwiGLU": ("(float[4,64] g, float[4,64] u) => (float[4,64] y) { s = Sigmoid(g) h = Mul(g, s) y = Mul(h, u) }", 3),
    "two outputs": ("(float[4,64] x) => (float[4,64] y, float[4,64] z) { y = Exp(x) z = Neg(y) }", 2),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_chain_becomes_one_composite(name: str) -> None:
    text, count = WHOLE[name]
    before = model(text)
    results = [v.name for v in before.graph.outputs]
    operators = [n.op_type for n in before.graph if n.op_type != "Constant"]
    made, context, modified = fuse(text)
    assert modified
    assert [k for k in kinds(made) if k != "Constant"] == ["region"]
    assert bodies(made) == [operators]
    assert [v.name for v in made.graph.outputs] == results
    (taken,) = context.diagnostics.of("fusion", taken=True)
    assert taken.reason == f"{count} nodes in one kernel"
    onnx.checker.check_model(ir.to_proto(made))


def test_equal_regions_share_one_function() -> None:
    made, _, _ = fuse("""(float[8,16] x, float[16,16] w) => (float[8,16] y) {
        a = MatMul(x, w) b = Exp(a) c = Neg(b) d = MatMul(c, w) e = Exp(d) y = Neg(e) }""")
    assert kinds(made) == ["MatMul", "region", "MatMul", "region"]
    assert len(made.functions) == 1
    made, _, _ = fuse("""(float[8,16] x, float[16,16] w) => (float[8,16] y) {
        a = MatMul(x, w) b = Exp(a) c = Neg(b) d = MatMul(c, w) e = Exp(d) y = Abs(e) }""")
    assert len(made.functions) == 2


def test_a_path_through_another_node_keeps_a_region_apart() -> None:
    made, context, _ = fuse("""(float[16,16] x) => (float[16,16] y) {
        a = Exp(x) b = MatMul(a, a) c = Neg(b) y = Add(c, a) }""")
    assert bodies(made) == [["Exp"], ["Neg", "Add"]]
    assert refusal(context, "MatMul_1") == "MatMul is not an operator that regions take"


def test_a_reduction_over_another_axis_joins() -> None:
    made, _, _ = fuse("""(float[16,8] x) => (float[1,8] y) {
        a = Constant<value = int64[1] {0}>() e = Exp(x) s = ReduceSum(e, a) y = Neg(s) }""")
    assert bodies(made) == [["Exp", "ReduceSum", "Neg"]]


def test_reductions_over_different_axes_stay_apart() -> None:
    made, _, _ = fuse("""(float[16,8] x) => (float[16,8] y) {
        a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {1}>()
        s = ReduceSum(x, a) d = Sub(x, s) m = ReduceMax(d, b) y = Sub(d, m) }""")
    assert bodies(made) == [["ReduceSum", "Sub"], ["ReduceMax", "Sub"]]


def test_a_shared_view_is_copied_into_the_region() -> None:
    """The transposed operand feeds a product too: the region takes its own copy and the view stays, as a kernel
    of its own because everything is to be one."""
    made, _, _ = fuse("""(float[4,8,16] x, float[8,16,4] w) => (float[8,4,16] y, float[8,4,4] z) {
        t = Transpose<perm=[1,0,2]>(x) y = Exp(t) z = MatMul(t, w) }""")
    assert sorted(kinds(made)) == ["MatMul", "region", "region"]
    assert sorted(bodies(made)) == [["Transpose"], ["Transpose", "Exp"]]


def test_a_view_that_only_regions_read_leaves_the_graph() -> None:
    made, _, _ = fuse("(float[4,8,16] x) => (float[8,4,16] y) { t = Transpose<perm=[1,0,2]>(x) y = Exp(t) }")
    assert kinds(made) == ["region"]


@pytest.mark.parametrize("reader", ["Exp(b)", "Transpose<perm=[0,1]>(b)"])
def test_what_copies_leave_of_a_view_is_taken_in_the_same_run(reader: str) -> None:
    """Parts of different sizes are no kernel together. The reader of one has a copy; then only the other is left."""
    made, context, _ = fuse(f"""(float[2,96] x, float[64,8] w) => (float[2,8] y, float[2,32] z) {{
        s = Constant<value = int64[2] {{64, 32}}>() a, b = Split<axis=1>(x, s) y = MatMul(a, w) z = {reader} }}""")
    assert bodies(made) == [["Split"], ["Split", reader.partition("(")[0].partition("<")[0]]]
    assert {d.subject for d in context.diagnostics if not d.taken} == {"MatMul_2"}
    again = PassContext()
    assert not RegionFusion("all").run(made, again).modified
    assert {d.subject for d in again.diagnostics} == {"MatMul_2"}  # neither kernels nor constants
    made, context, _ = fuse("""(float[2,96] x, float[64,8] w, float[64,2] r) => (float[2,8] y, float[64,32] z) {
        s = Constant<value = int64[2] {64, 32}>() a, b = Split<axis=1>(x, s) y = MatMul(a, w) z = MatMul(r, b) }""")
    assert bodies(made) == []
    assert refusal(context, "Split_1") == "outputs of shapes [2, 64] and [2, 32] in one kernel"


def test_a_view_of_which_every_reader_has_a_copy_says_so() -> None:
    made, context, _ = fuse("""(float[2,96] x) => (float[2,64] y, float[2,32] z) {
        s = Constant<value = int64[2] {64, 32}>() a, b = Split<axis=1>(x, s) y = Neg(a) z = Exp(b) }""")
    assert bodies(made) == [["Split", "Neg"], ["Split", "Exp"]]
    assert [d.taken for d in context.diagnostics if d.reason == "each kernel that reads it has a copy of it"] == [True]
    assert "Split_1" not in {d.subject for d in context.diagnostics.refusals()}


def test_what_no_region_tries_has_a_reason() -> None:
    """Offload "auto" starts no region at a view."""
    _, context, _ = fuse("""(float[a,b,64] x, float[64,8] w) => (float[c,8] y) {
        s = Shape(x) k = Constant<value = int64[1] {-1}>() l = Constant<value = int64[1] {64}>()
        t = Concat<axis=0>(k, l) r = Reshape(x, t) y = MatMul(r, w) }""", "auto")
    assert refusal(context, "Concat_3") == "it works out sizes or positions, too few numbers for a kernel"
    assert refusal(context, "Reshape_4") == "it only moves elements, and no region beside it can take it in"
    assert refusal(context, "Shape_0") == "ONNX Runtime knows sizes without computing anything"


def test_extents_that_a_kernel_cannot_tell_apart_are_named() -> None:
    made = model("(float[a,b,8] x, float[c,64] p, int64[3] t) => (float[a,b,64] y) { y = Reshape(p, t) }")
    made.graph.inputs[1].shape = ir.Shape(["a*b", 64])
    context = PassContext()
    RegionFusion("all").run(made, context)
    assert refusal(context, "Reshape_0").startswith("the extents of [a, b, 64] do not follow from [a*b, 64]")


def test_a_copied_view_stays_in_the_graph_while_another_copy_reads_it() -> None:
    """An earlier region has a copy of the Unsqueeze, which reads the Transpose. This one has all other readers of the
    Transpose, and does not remove it."""
    made = model("""(float[4,8] x, float[4,4] w) => (float[1,8,4] y, float[8,4] z, float[1,8,4] u) {
        t = Transpose<perm=[1,0]>(x) a = Constant<value = int64[1] {0}>() c = Unsqueeze(t, a) y = Exp(c)
        z = Neg(t) u = MatMul(c, w) }""")
    view = GraphView(made.graph)
    by = {n.op_type: n for n in view.nodes}

    def grown(copies: Copies) -> Candidate:
        reach = Reach(view.nodes, view.graph.edges())
        verdicts = Verdicts({"": 20}, plan)
        found = grow(by["Neg"], view, reach, lambda n: n is not by["Exp"], verdicts, lambda *_: None, copies)
        assert found is not None
        assert {n.op_type for n in found.nodes} == {"Transpose", "Unsqueeze", "Neg"}
        return found

    assert grown(Copies()).clones == frozenset()
    copies = Copies()
    copies.add((by["Unsqueeze"], by["Exp"]), frozenset((by["Unsqueeze"],)))
    assert grown(copies).clones == {by["Transpose"]}


def test_bodies_of_control_flow_have_regions_of_their_own() -> None:
    made, _, _ = fuse("""(float[4,64] x, bool c) => (float[4,64] y) {
        k = Exp(x)
        y = If (c) <then_branch = t () => (float[4,64] p) { q = Neg(k) p = Abs(q) },
                    else_branch = e () => (float[4,64] r) { r = Identity(k) }> }""")
    branch = next(n for n in made.graph if n.op_type == "If").attributes["then_branch"].as_graph()
    assert [n.domain for n in branch] == [DOMAIN]
    assert [v.name for v in branch.outputs] == ["p"]


def test_the_cost_model_decides_in_auto() -> None:
    tiny = "(float[2] x) => (float[2] y) { y = Relu(x) }"
    made, context, modified = fuse(tiny, "auto")
    assert (kinds(made), modified) == (["Relu"], False)
    assert refusal(context, "Relu_0").startswith("ONNX Runtime keeps it: estimated")
    assert fuse(tiny, "all")[2]
    large, _ = WHOLE["tanh GELU"]
    assert fuse(large.replace("[4,64]", "[512,3072]").replace("[64]", "[3072]"), "auto")[2]


def test_offload_none_changes_nothing() -> None:
    text, _ = WHOLE["SwiGLU"]
    made, context, modified = fuse(text, "none")
    assert (kinds(made), modified, list(context.diagnostics)) == (["Sigmoid", "Mul", "Mul"], False, [])


def test_a_model_without_candidates_is_not_modified() -> None:
    made, _, modified = fuse("(float[4,4] x) => (float[4,4] y) { y = MatMul(x, x) }")
    assert (kinds(made), modified) == (["MatMul"], False)


def test_too_many_inputs_are_split() -> None:
    names = [f"x{k}" for k in range(60)]
    steps = [f"s0 = Add({names[0]}, {names[1]})"]
    steps += [f"s{k} = Add(s{k - 1}, {names[k + 1]})" for k in range(1, 59)]
    made, _, _ = fuse(f"({', '.join(f'float[8,16] {n}' for n in names)}) => (float[8,16] s58) "
                            f"{{ {' '.join(steps)} }}")
    assert len(bodies(made)) == 2
    assert sum(map(len, bodies(made))) == 59


def test_growth_is_bounded() -> None:
    steps = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(120))
    made, _, _ = fuse(f"(float[8,16] v0) => (float[8,16] v120) {{ {steps} }}")
    assert [len(b) for b in bodies(made)] == [96, 24]


def test_many_neighbours_that_never_fit_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the parameters of a training step, which all read the scale of its gradients."""
    asked: list[int] = []

    def counted(nodes: Sequence[ir.Node], *args: Any, **more: Any) -> Candidate:
        asked.append(len(nodes))
        return legal.examine(nodes, *args, **more)

    monkeypatch.setattr(growth, "examine", counted)
    sizes = range(3, 23)
    inputs = ", ".join(f"float[{n},24] p{n}" for n in sizes)
    outputs = ", ".join(f"float[{n},24] y{n}" for n in sizes)
    chain = " ".join(f"c{k + 1} = Mul(c{k}, q)" for k in range(40))
    others = " ".join(f"y{n} = Mul(p{n}, c0)" for n in sizes)
    made, _, _ = fuse(f"(float[24] q, {inputs}) => ({outputs}, float[24] c40) {{ c0 = Exp(q) {others} {chain} }}")
    assert max(map(len, bodies(made))) == 41
    assert sum(n > 2 for n in asked) < 250  # 40 joined, and 8 tries of each of 20; without a bound 800 more


def test_the_same_model_gives_the_same_regions() -> None:
    text, _ = WHOLE["layer normalisation"]
    first, second = fuse(text)[0], fuse(text)[0]
    assert ir.to_proto(first).SerializeToString(deterministic=True) == \
        ir.to_proto(second).SerializeToString(deterministic=True)


def test_another_cost_model_may_be_given() -> None:
    class Never(CostModel):
        def kernel_us(self, *, vectors: float, bytes_moved: int, inputs: int) -> float:
            return 1e9

    made = model(WHOLE["tanh GELU"][0])
    assert not RegionFusion("auto", Never()).run(made, PassContext()).modified
