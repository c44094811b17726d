"""Where channels come from through Concat, Split, Slice, Gather and shuffles, and what is none of those."""

from __future__ import annotations

import pytest

from tests.unit.fusion.parse import model
from tilegraph.graph import GraphView
from tilegraph.passes import PassContext
from tilegraph.rewrites.conv.channels import Channels
from tilegraph.rewrites.normalise import NORMALISE


def numbers(name: str, *values: int) -> str:
    return f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values))}}}>() "


SHUFFLE = numbers("five", 0, 2, 3, 5, 7) + numbers("four", 0, 6, 5, 7)


def found(text: str) -> dict[str, list[tuple[str, list[int]]]]:
    """Value -> the values that its channels come from, and which of theirs, neighbours of one value together."""
    graph = model(text)
    for step in NORMALISE:
        step.run(graph, PassContext())
    places: dict[str, list[tuple[str, list[int]]]] = {}
    for one in Channels(GraphView(graph.graph)).found():
        runs: list[tuple[str, list[int]]] = []
        for value, channel in one.channels:
            if not runs or runs[-1][0] != value.name:
                runs.append((value.name or "", []))
            runs[-1][1].append(channel)
        places[one.value.name or ""] = runs
    return places


def test_a_chain_is_one_choice_and_ends_where_something_else_reads() -> None:
    split = f"(float[1,6,5,7] x, float[1,2,5,7] z) => (float[1,a,5,7] y, float[1,b,5,7] u) {{ {numbers('w', 2, 4)} "
    split += "a, b = Split<axis = 1>(x, w) c = Concat<axis = 1>(z, a) "
    rest = [("x", [2, 3, 4, 5])]
    assert found(split + "y = Relu(c) u = Relu(b) }") == {"c": [("z", [0, 1]), ("x", [0, 1])], "b": rest}
    # c is read: what follows starts there
    assert found(split + "y = Relu(c) u = Concat<axis = 1>(c, b) }")["u"] == [("c", [0, 1, 2, 3]), *rest]


def test_shuffles_slices_and_gathers() -> None:
    head = f"(float[1,6,5,7] x) => (float[1,c,5,7] y) {{ {SHUFFLE} r = Reshape(x, five) "
    turned = "t = Transpose<perm = [0, 2, 1, 3, 4]>(r) s = Reshape(t, four) "
    assert found(head + turned + "y = Relu(s) }") == {"s": [("x", [0, 3, 1, 4, 2, 5])]}
    cut = numbers("b", 1) + numbers("e", -1) + numbers("ax", 1) + numbers("two", 2)
    assert found(head + turned + cut + "k = Slice(s, b, e, ax, two) y = Relu(k) }") == {"k": [("x", [3, 4])]}
    chosen = "i = Constant<value = int64[3] {-1, 0, 0}>() k = Gather<axis = 1>(s, i) y = Relu(k) }"
    assert found(head + turned + chosen) == {"k": [("x", [5, 0, 0])]}


@pytest.mark.parametrize("rest", [
    "t = Transpose<perm = [0, 2, 1, 4, 3]>(r) s = Reshape(t, four) y = Relu(s) }",  # rows and columns, too
    "t = Transpose<perm = [0, 3, 1, 2, 4]>(r) s = Reshape(t, four) y = Relu(s) }",
    "t = Transpose<perm = [0, 2, 1, 3, 4]>(r) s = Reshape(t, other) y = Relu(s) }",  # another shape
    "t = Transpose<perm = [0, 2, 1, 3, 4]>(r) s = Reshape(t, four) u = Relu(t) v = Reshape(u, four) y = Add(s, v) }",
])
def test_what_is_no_shuffle(rest: str) -> None:
    other = numbers("other", 0, 6, 7, 5)
    assert not found(f"(float[1,6,5,7] x) => (float[1,a,b,c] y) {{ {SHUFFLE}{other} r = Reshape(x, five) {rest}")
