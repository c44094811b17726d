"""Planted faults: a wrong rewrite, a wrong kernel, a wrong mask and wrong folders are each found and cut out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.numeric.verify.verify_pairs import save
from tests.unit.attention.spellings import Spelling
from tilegraph.cli import main
from tilegraph.codegen.conv.winograd import _Winograd
from tilegraph.codegen.gemm.kernel import ProductKernel
from tilegraph.codegen.isa import host
from tilegraph.codegen.tir_math import V
from tilegraph.compiler import list_passes, optimize
from tilegraph.compiler.program import _LOWERINGS
from tilegraph.errors import UsageError
from tilegraph.ops.pointwise import POINTWISE
from tilegraph.passes import Pass, PassContext, PassResult
from tilegraph.targets import CompilerOptions
from tilegraph.targets.cpu import CPU
from tilegraph.targets.table import TARGETS
from tilegraph.verify import verify
from tilegraph.verify.bisect import Finding, bisect
from tilegraph.verify.bisect.kernels import PASS_OF

F = np.float32
RNG = np.random.default_rng(11)
WEIGHTS = {"w": RNG.standard_normal((16, 16)).astype(F) / 4, "v": RNG.standard_normal((16, 16)).astype(F) / 4}
# Two chains around two products; the second has the only Softsign.
MODEL = """g (float[batch, seq, 16] x) => (float[batch, seq, 16] y) {
    half = Constant<value = float {0.5}>() last = Constant<value = int64[1] {-1}>()
    m = MatMul(x, w) e = Erf(m) f = Mul(e, m) g = Mul(f, half) r = Add(g, x)
    mean = ReduceMean(r, last) c = Sub(r, mean) q = Mul(c, c) var = ReduceMean(q, last)
    a = Add(var, half) d = Sqrt(a) n = Div(c, d)
    p = MatMul(n, v) s = Softsign(p) t = Tanh(s) z = Mul(t, p) y = Add(z, n)
}"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", str(tmp_path / "cache"))  # kernels with faults stay here
    return save(tmp_path / "model.onnx", MODEL, **WEIGHTS)


class Planted(Pass):
    """Takes the mean away from nothing: the first Sub loses its second operand's sign."""

    name = "planted"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        for node in model.graph:
            if node.op_type == "Sub":
                model.graph.insert_before(node, new := ir.Node("", "Add", node.inputs, name=f"{node.name}_planted"))
                node.outputs[0].replace_all_uses_with(new.outputs[0], replace_graph_outputs=True)
                new.outputs[0].name, node.outputs[0].name = node.outputs[0].name, None
                new.outputs[0].shape, new.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
                model.graph.remove(node, safe=True)
                return PassResult(True)
        return PassResult(False)


@pytest.fixture
def wrong_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(options: CompilerOptions) -> Any:
        right = CPU.passes(options)
        return (*right[:8], Planted(), *right[8:])

    monkeypatch.setitem(TARGETS, "cpu", replace(CPU, passes=passes))


@pytest.fixture
def wrong_operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, Callable[..., Any]], None]:
    """Lets the kernels of one pointwise operator compute something else."""
    def plant(name: str, compute: Callable[..., Any]) -> None:
        # The cache knows kernels by what they compute, and believes the code that this replaces.
        monkeypatch.setenv("TILEGRAPH_CACHE_DIR", str(tmp_path / f"cache-{name}"))
        right = POINTWISE["", name]
        wrong = replace(right, fn=lambda m, args, attrs, dtype: compute(m, right.fn, args, attrs, dtype))
        monkeypatch.setitem(POINTWISE, ("", name), wrong)

    return plant


def slightly_more(m: Any, right: Any, args: Any, attrs: Any, dtype: str) -> Any:
    """An error of a ten-thousandth, far outside the bound and far below what eyes would see."""
    return m.mul(right(m, args, attrs, dtype), m.const(1.0001, dtype))


def swapped(m: Any, right: Any, args: Any, attrs: Any, dtype: str) -> Any:
    return right(m, [args[0], args[2], args[1]], attrs, dtype)


def found(original: Path, folder: Path, place: Path, **options: Any) -> Finding:
    result = verify(original, folder, samples=2)
    finding = bisect(result, place, **options)
    if finding.model is not None:
        assert finding.candidate is not None
        assert finding.inputs is not None
        again = verify(finding.model, finding.candidate, inputs=finding.inputs)
        assert not again.same, finding.lines()
        assert not again.inconclusive
    return finding


def operators(model: Path | None) -> list[str]:
    assert model is not None
    return sorted(n.op_type for n in onnx.load(model).graph.node if n.op_type != "Constant")


def test_a_right_model_has_nothing_to_find(model: Path, tmp_path: Path) -> None:
    folder = optimize(model, offload="all").save(tmp_path / "m.tilegraph")
    finding = found(model, folder, tmp_path / "b")
    assert finding.kind == "none", finding.lines()
    assert finding.model is None


@pytest.mark.usefixtures("wrong_rewrite")
def test_a_wrong_rewrite(model: Path, tmp_path: Path) -> None:
    folder = optimize(model, offload="all").save(tmp_path / "m.tilegraph")
    finding = found(model, folder, tmp_path / "b")
    assert (finding.kind, finding.culprit) == ("pass", "planted"), finding.lines()
    assert finding.switches == ["--disable planted"]
    assert operators(finding.model) == ["Sub"]
    assert finding.value == "c"
    assert len(finding.nodes) == 1
    assert verify(model, optimize(model, offload="all", disable=["planted"]).save(tmp_path / "r.tilegraph")).same


def test_a_wrong_kernel(model: Path, tmp_path: Path, wrong_operator: Callable[..., None]) -> None:
    wrong_operator("Softsign", slightly_more)
    folder = optimize(model, offload="all", disable=["fuse-gemm"]).save(tmp_path / "m.tilegraph")
    finding = found(model, folder, tmp_path / "b")
    assert finding.kind == "kernel", finding.lines()
    assert finding.switches == ["--disable fuse-regions"]
    assert operators(finding.model) == ["Softsign"]
    assert [n.split()[0] for n in finding.nodes] == ["Softsign"]
    assert finding.value == "y"


def test_a_wrong_kernel_whose_answer_nobody_sees(tmp_path: Path, wrong_operator: Callable[..., None],
                                                 model: Path) -> None:
    """The answers are the same, and the user suspects it all the same."""
    path = save(tmp_path / "hidden.onnx", """g (float[n, 16] x) => (float[n, 16] y) {
        zero = Constant<value = float {0}>() s = Softsign(x) t = Mul(s, s) m = MatMul(t, w) z = Mul(m, zero)
        y = Add(z, x)
    }""", **WEIGHTS)
    wrong_operator("Softsign", slightly_more)
    folder = optimize(path, offload="all").save(tmp_path / "m.tilegraph")
    assert verify(path, folder).same
    finding = found(path, folder, tmp_path / "b")
    assert finding.kind == "kernel", finding.lines()
    assert "Softsign" in operators(finding.model)


def test_a_wrong_mask(tmp_path: Path, wrong_operator: Callable[..., None], model: Path) -> None:
    path = tmp_path / "attention.onnx"
    onnx.save(Spelling(mask="padding-bool", queries=24, keys=24).model(), path)
    right = optimize(path, offload="all").save(tmp_path / "right.tilegraph")
    assert verify(path, right).same
    wrong_operator("Where", swapped)
    folder = optimize(path, offload="all").save(tmp_path / "m.tilegraph")
    finding = found(path, folder, tmp_path / "b")
    assert finding.kind == "kernel", finding.lines()
    assert "Attention" in finding.reason
    assert finding.switches == ["--disable fuse-attention"] or finding.switches == ["--offload none"]
    assert "Where" in operators(finding.model)


@pytest.mark.skipif(host().vector_bits < 256, reason="convolutions need vectors of 256 bits")
def test_a_wrong_kernel_of_lower_precision_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What --fast-winograd may err does not excuse a result that is off by more."""
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    path = save(tmp_path / "m.onnx", """g (float[1, 32, 8, 8] x) => (float[1, 32, 8, 8] y) {
        c = Conv<pads=[1, 1, 1, 1]>(x, w) y = Relu(c)
    }""", w=RNG.standard_normal((32, 32, 3, 3)).astype(F) / 17)
    right = _Winograd._result_line

    def wrong(self: _Winograd, a: list[V]) -> list[V]:
        first, *rest = right(self, a)
        return [self.e.math.mul(first, self.e.f32(1.001)), *rest]

    monkeypatch.setattr(_Winograd, "_result_line", wrong)
    others = [p for p in list_passes() if p not in ("shapes", "plan-layouts")]
    made = optimize(path, offload="all", fast_winograd=True, disable=others)
    finding = found(path, made.save(tmp_path / "m.tilegraph"), tmp_path / "b")
    assert finding.kind == "kernel", finding.lines()
    assert "ConvFast" in finding.reason
    assert finding.switches == ["--disable plan-layouts"]
    assert "Conv" in operators(finding.model)


def test_a_wrong_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    path = save(tmp_path / "g.onnx", "g (float[n, 16] x) => (float[n, 16] y) { m = MatMul(x, w) y = Tanh(m) }",
                **WEIGHTS)
    right = ProductKernel.product
    monkeypatch.setattr(ProductKernel, "product", lambda self, sums, column: self.e.math.mul(
        right(self, sums, column), self.e.f32(1.001)))
    finding = found(path, optimize(path, offload="all").save(tmp_path / "m.tilegraph"), tmp_path / "b")
    assert finding.kind == "kernel", finding.lines()
    assert "Gemm" in finding.reason
    assert finding.switches == ["--disable fuse-gemm"]
    assert "MatMul" in operators(finding.model)


def test_every_kind_of_kernel_has_a_switch() -> None:
    assert set(PASS_OF) == set(_LOWERINGS)
    assert set(PASS_OF.values()) <= set(list_passes())


def test_a_folder_of_another_model(model: Path, tmp_path: Path) -> None:
    other = save(tmp_path / "other.onnx", MODEL, w=WEIGHTS["v"], v=WEIGHTS["w"])
    finding = found(model, optimize(other).save(tmp_path / "m.tilegraph"), tmp_path / "b")
    assert finding.kind == "folder"
    assert "made from another model" in finding.reason


def test_a_folder_of_another_version(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     wrong_operator: Callable[..., None]) -> None:
    right = POINTWISE["", "Softsign"]
    wrong_operator("Softsign", slightly_more)
    folder = optimize(model, offload="all").save(tmp_path / "m.tilegraph")
    monkeypatch.setitem(POINTWISE, ("", "Softsign"), right)
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    finding = found(model, folder, tmp_path / "b")
    assert finding.kind == "folder", finding.lines()
    assert "another version" in finding.reason
    assert finding.switches == ["tilegraph optimize, run again"]


def test_the_command_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                          wrong_operator: Callable[..., None]) -> None:
    wrong_operator("Softsign", slightly_more)
    path = save(tmp_path / "small.onnx", "g (float[n, 16] x) => (float[n, 16] y) { s = Softsign(x) y = Add(s, x) }")
    folder = optimize(path, offload="all").save(tmp_path / "m.tilegraph")
    arguments = ["verify", str(path), str(folder), "--samples", "1", "--bisect", str(tmp_path / "b"), "--json", "-"]
    assert main(arguments) == 1
    shown = capsys.readouterr()
    told = json.loads(shown.out)["bisect"]
    assert told["kind"] == "kernel"
    assert told["command"] == f"tilegraph verify {told['model']} {told['candidate']} --inputs {told['inputs']}"
    assert "avoided by:" in shown.err
    assert main(told["command"].split()[1:]) == 1


def test_a_folder_with_other_files_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    result = verify(model, model)
    with pytest.raises(UsageError, match="holds other files"):
        bisect(result, tmp_path / "b")
    assert (tmp_path / "b" / "mine.txt").read_text() == "mine"
