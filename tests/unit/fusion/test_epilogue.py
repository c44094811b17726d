"""What follows an anchor: reached through accepted nodes alone, and read by nobody else."""

from __future__ import annotations

import onnx_ir as ir

from tests.unit.fusion.parse import model
from tilegraph.graph import GraphView
from tilegraph.rewrites.fusion.epilogue import between, followers

NET = """(float[4,8] x, float[8,8] w, float[4,8] r) => (float[4,8] y, float[4,8] z) {
    m = MatMul(x, w) a = Relu(m) b = Neg(m) c = Add(a, b) s = Softmax(c) y = Abs(s) d = Exp(c) z = Add(d, r) }"""


def net(text: str = NET) -> tuple[GraphView, dict[str, ir.Node]]:
    graph = model(text).graph
    return GraphView(graph), {n.outputs[0].name or "": n for n in graph}


def pointwise(node: ir.Node) -> bool:
    return node.op_type != "Softmax"


def test_followers_stop_at_what_is_not_accepted() -> None:
    view, made = net()
    assert followers((made["m"],), view, pointwise, 40) == [made[n] for n in ("a", "b", "c", "d", "z")]


def test_followers_are_limited() -> None:
    view, made = net()
    assert followers((made["m"],), view, pointwise, 1) == [made["a"], made["b"]]  # readers of one node come together


def test_between_takes_all_ways() -> None:
    view, made = net()
    ends = followers((made["m"],), view, pointwise, 40)
    assert between((made["m"],), made["c"], ends, view) == tuple(made[n] for n in "mabc")


def test_between_refuses_what_others_read() -> None:
    view, made = net()
    ends = followers((made["m"],), view, pointwise, 40)
    assert between((made["m"],), made["a"], ends, view) is None  # b reads the product, too
    assert between((made["m"],), made["z"], ends, view) is None  # Softmax reads c


def test_between_refuses_graph_outputs_inside() -> None:
    view, made = net(NET.replace("float[4,8] y, float[4,8] z", "float[4,8] a, float[4,8] y, float[4,8] z"))
    ends = followers((made["m"],), view, pointwise, 40)
    assert between((made["m"],), made["c"], ends, view) is None


def test_between_two_anchors() -> None:
    view, made = net("""(float[4,8] x, float[8,8] w, float[8,8] v) => (float[4,8] z) {
        m = MatMul(x, w) n = MatMul(x, v) a = Relu(m) c = Mul(a, n) z = Abs(c) }""")
    both = (made["m"], made["n"])
    ends = followers(both, view, pointwise, 40)
    assert ends == [made[n] for n in "acz"]
    assert between(both, made["c"], ends, view) == tuple(made[n] for n in "mnac")
    assert between(both, made["a"], ends, view) is None  # the second does not lead there
