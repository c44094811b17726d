"""Equal initializers become one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from norm_check import SPECIAL, loaded, run
from onnx import numpy_helper

from tilegraph.io import load
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise import (
    DedupInitializers,
)

X = {"x": SPECIAL}


def dedup(modified: bool, **arrays: np.ndarray) -> set[str]:
    names = list(arrays)
    body = "a0 = Identity(x) " + " ".join(
        f"c{i} = Cast <to = 1> ({n})  a{i + 1} = Add(a{i}, c{i})" for i, n in enumerate(names))
    model = loaded(f"g (float[8] x) => (float[8] y) {{ {body} y = Identity(a{len(names)}) }}", **arrays)
    run(DedupInitializers(), model, modified=modified, feeds=X)
    return set(model.graph.initializers)


def test_equal_initializers_become_one() -> None:
    assert dedup(True, p=np.ones(8, np.float32), q=np.ones(8, np.float32), r=np.zeros(8, np.float32)) == {"p", "r"}


@pytest.mark.parametrize(("p", "q"), [
    (np.zeros(8, np.float32), -np.zeros(8, np.float32)),  # 0.0 and -0.0
    (np.ones(8, np.float32), np.ones(8, np.float64)),
    (np.ones(1, np.float32), np.ones((), np.float32)),
    (np.ones(8, np.int32), np.ones(8, np.uint32)),
])
def test_initializers_that_differ_stay(p: np.ndarray, q: np.ndarray) -> None:
    assert dedup(False, p=p, q=q) == {"p", "q"}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("changed", [0, 4096, 8191, None])  # beside, in and beside the bytes looked at first
def test_large_ones_are_compared_whole(changed: int | None, mapped: bool, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[8192] x) => (float[8192] y) { a = Add(x, p)  y = Add(a, q) }""")
    other = np.ones(8192, np.float32)
    if changed is not None:
        other[changed] = 2
    for name, array in (("p", np.ones(8192, np.float32)), ("q", other)):
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(proto, str(tmp_path / "m.onnx"), save_as_external_data=mapped, location="d")
    model = load(tmp_path / "m.onnx")
    assert DedupInitializers().run(model, PassContext()).modified == (changed is None)
    assert set(model.graph.initializers) == ({"p"} if changed is None else {"p", "q"})


def test_mapped_copies_are_found_without_reading_the_others(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[8] x) => (float[8] y) { a = Add(x, p)  b = Add(a, q)  y = MatMul(b, alone) }""")
    for name, array in (("p", np.ones(8, np.float32)), ("q", np.ones(8, np.float32)),
                        ("alone", np.eye(8, dtype=np.float32))):
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(proto, str(tmp_path / "m.onnx"), save_as_external_data=True, location="d", size_threshold=0)
    model = load(tmp_path / "m.onnx")
    assert DedupInitializers().run(model, PassContext()).modified
    assert set(model.graph.initializers) == {"p", "alone"}
    tensor = model.graph.initializers["alone"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.raw is None


def test_inputs_and_outputs_keep_their_initializers() -> None:
    one = np.ones(8, np.float32)
    model = loaded("g (float[8] x, float[8] given) => (float[8] y, float[8] out) { a = Add(x, given)  b = Add(a, out) "
                   "y = Add(b, plain) }", given=one, out=one, plain=one)
    run(DedupInitializers(), model, modified=True, feeds=X)
    assert set(model.graph.initializers) == {"given", "out"}  # `plain` gave way to `out`


def test_a_branch_shares_the_outer_initializer() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[8] x, bool c) => (float[8] y) {
            a = Add(x, w)
            y = If (c) <then_branch = t () => (float[8] r) { r = Mul(a, v) },
                        else_branch = e () => (float[8] s) { s = Neg(a) }> }""")
    one = np.ones(8, np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(one, "w"))
    proto.graph.node[1].attribute[0].g.initializer.append(numpy_helper.from_array(one, "v"))
    model = run(DedupInitializers(), load(proto), modified=True, feeds={**X, "c": np.array(True)})
    assert [set(g.initializers) for g in model.graphs()] == [{"w"}, set(), set()]
