"""Numbered dumps and checks after passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tilegraph.errors import InternalError
from tilegraph.io import load
from tilegraph.passes import Pass, PassContext, PassResult, Pipeline
from tilegraph.passes.instruments import CheckInstrument, DumpInstrument


class Nothing(Pass):
    name = "nothing"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        return PassResult(False)


class Rename(Pass):
    name = "rename"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        model.graph[0].name = "renamed"
        return PassResult(True)


class Break(Pass):
    name = "break"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        model.graph[0].replace_input_with(0, ir.Value(name="nobody"))
        return PassResult(True)


def model_with_weight() -> ir.Model:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 300] x) => (float[n, 300] y) { a = Add(x, w)  y = Mul(a, s) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(300, np.float32), "w"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2), "s"))
    return load(proto)


def test_dumps_are_numbered_and_small(tmp_path: Path) -> None:
    model = model_with_weight()
    Pipeline([Nothing(), Rename()], instruments=[DumpInstrument(tmp_path / "d")]).run(model, PassContext())
    assert [p.name for p in sorted((tmp_path / "d").iterdir())] == ["01-rename.onnx"]
    dump = onnx.load(str(tmp_path / "d" / "01-rename.onnx"))
    onnx.checker.check_model(dump)
    assert dump.graph.node[0].name == "renamed"
    assert [t.name for t in dump.graph.initializer] == ["s"]
    assert [v.name for v in dump.graph.input] == ["x", "w"]
    assert len(dump.SerializeToString()) < 1000
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    assert tensor.numpy().sum() == 300  # the model itself keeps its weights


def test_all_passes_may_be_dumped(tmp_path: Path) -> None:
    Pipeline([Nothing(), Rename()], instruments=[DumpInstrument(tmp_path, all_passes=True)]).run(
        model_with_weight(), PassContext())
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["00-nothing.onnx", "01-rename.onnx"]


def test_the_check_names_the_pass() -> None:
    with pytest.raises(InternalError, match=r"after pass 'break'.*\n.*nobody"):
        Pipeline([Nothing(), Rename(), Break()], instruments=[CheckInstrument()]).run(
            model_with_weight(), PassContext())
    Pipeline([Nothing(), Rename()], instruments=[CheckInstrument()]).run(model_with_weight(), PassContext())
