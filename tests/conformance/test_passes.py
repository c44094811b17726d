"""A fixed spread of tests/conformance/passes.py, and that it notices what it looks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from tests.conformance import passes
from tests.conformance.sweep_cases import Case, cases
from tilegraph.io import load
from tilegraph.passes import Pass, PassContext, PassResult


def test_a_spread_of_the_corpus(corpus: Path) -> None:
    chosen = cases(("corpus",))[7::40]
    assert len(chosen) >= 6
    problems = [p for k, case in enumerate(chosen) for p in passes.check(case, one_in=6, offset=k)]
    assert not problems, "\n".join(map(str, problems))


class Growing(Pass):
    """Adds a node each time, and denies it."""

    name = "growing"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        value = model.graph.outputs[0]
        node = ir.Node("", "Neg", [value], name=f"neg{len(list(model.graph))}")
        node.outputs[0].name = f"more{len(list(model.graph))}"
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        model.graph.append(node)
        model.graph.outputs[0] = node.outputs[0]
        return PassResult(False)


def test_faults_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) '
                                      "{ y = Exp(x) }"), path)
    feeds = {"x": np.arange(4, dtype=np.float32)}
    monkeypatch.setattr(passes, "open_case", lambda case: (path, [feeds]))
    monkeypatch.setattr(passes, "pipeline", lambda offload="all": [Growing()])
    found = [str(p) for p in passes.check(Case("corpus", "m"))]
    assert any("says modified=False, and the model changed" in p for p in found)
    assert any("a second run changes the model again" in p for p in found)
    assert any("growing alone: output 0" in p for p in found)
    assert any("order 0: growing: output 0" in p for p in found)
    assert not any("without growing" in p for p in found)


class Shrinking(Pass):
    """Right only behind `Growing`: takes the last node out."""

    name = "shrinking"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        last = model.graph.outputs[0].producer()
        assert last is not None
        assert last.inputs[0] is not None
        model.graph.outputs[0] = last.inputs[0]
        model.graph.remove(last, safe=True)
        return PassResult(True)


def test_an_order_that_gives_other_answers_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) '
                                      "{ a = Abs(x) b = Neg(a) y = Exp(b) }"), path)
    feeds = {"x": np.arange(4, dtype=np.float32)}
    wanted = passes.answers(str(path), feeds)
    assert wanted is not None
    monkeypatch.setattr(passes, "pipeline", lambda offload="all": [Growing(), Shrinking()])
    case, model = Case("corpus", "m"), load(path)
    orders = [[str(p) for p in passes.in_random_order(case, model, k, [(feeds, wanted)])] for k in range(8)]
    assert [] in orders  # growing first
    assert all("shrinking growing: output 0" in p for found in orders for p in found)
    assert any(orders)


class Noting(Pass):
    """Changes nothing that a model file holds."""

    name = "noting"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        model.graph.meta["noted"] = True
        return PassResult(False)


class Relying(Growing):
    """Wrong where `Noting` did not run."""

    name = "relying"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        return PassResult(False) if "noted" in model.graph.meta else super().run(model, context)


def test_a_pass_that_only_leaves_a_note_is_left_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) '
                                      "{ y = Exp(x) }"), path)
    monkeypatch.setattr(passes, "open_case", lambda case: (path, [{"x": np.arange(4, dtype=np.float32)}]))
    monkeypatch.setattr(passes, "pipeline", lambda offload="all": [Noting(), Relying()])
    found = [str(p) for p in passes.check(Case("corpus", "m"), orders=0)]
    assert sorted(p.partition(": output")[0] for p in found) == ["m: relying alone", "m: without noting"]


def test_what_an_attention_needs_counts_as_changed_where_none_is_taken(tmp_path: Path) -> None:
    from tests.numeric.attention.test_attn_extents import expanded

    proto = expanded()
    proto.graph.output.append(onnx.ValueInfoProto(name="x"))  # the scores, so that no kernel may hold them
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "open_case", lambda case: (path, []))
        assert [str(p) for p in passes.check(Case("corpus", "m"))] == []
