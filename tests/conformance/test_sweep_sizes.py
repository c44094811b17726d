"""tests/conformance/sizes.py on a model that it writes, and that it notices what it looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.parser
import pytest

import tilegraph.compiler
from tests.conformance import sizes
from tests.conformance.sweep_cases import Case
from tests.conformance.sweep_worker import Result
from tilegraph.verify.run import RunFailure

OPTIMIZE = tilegraph.compiler.optimize
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 8] x, float[m, 8] k, float["m + n", 8] z, float[n, 1] u) => (float[a, b] w, float[c] top)
    <int64[1] zero = {0}> {
        v = Add(x, u)  g = Gelu(v)  p = Concat <axis = 0> (g, k)  w = Mul(p, z)
        top = ReduceMax <keepdims = 0> (g, zero) }"""


class Pipe:
    sent: Result

    def send(self, result: Result) -> None:
        self.sent = result

    def close(self) -> None:
        pass


def answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    path, rng = tmp_path / "m.onnx", np.random.default_rng(0)
    onnx.save(onnx.parser.parse_model(TEXT), path)
    shapes = {"x": (3, 8), "k": (5, 8), "z": (8, 8), "u": (3, 1)}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    monkeypatch.setattr(sizes, "open_case", lambda case: (path, [feeds]))
    pipe = Pipe()
    sizes.work(Case("corpus", "m"), "all", pipe)
    return pipe.sent


def test_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = answered(tmp_path, monkeypatch)
    assert found.status == "kernel", found.detail
    assert found.detail == "11 of 11 sizes"  # five of both, three of each; m + n follows


def test_what_differs_at_one_size_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(path: Path, **options: Any) -> Any:
        return OPTIMIZE(onnx.parser.parse_model(TEXT.replace("float[n, 8] x", "float[2, 8] x")), **options)

    monkeypatch.setattr(tilegraph.compiler, "optimize", fixed)
    found = answered(tmp_path, monkeypatch)
    assert found.status == "WRONG"
    assert "all 7: refused" in found.detail
    assert "all 2" not in found.detail


def test_a_folder_that_ends_its_process_where_onnx_runtime_does_is_told(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    taken = sizes.references_of

    def ended(opened: Any, changed: Any) -> Any:
        answers, _ = taken(opened, changed)
        return [None if words == "all 0" else a for (words, _), a in zip(changed, answers, strict=True)], ["all 0"]

    monkeypatch.setattr(sizes, "references_of", ended)
    monkeypatch.setattr(sizes, "apart", lambda what, given: ([None], sizes.ENDED))
    found = answered(tmp_path, monkeypatch)
    assert found.status == "kernel", found.detail
    assert found.detail == "10 of 11 sizes, ONNX Runtime ends its process at all 0, and the folder's at all 0"


def test_scalars_stay_scalars_and_the_end_of_a_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An LSTM over no batch ends ONNX Runtime's process when it has two threads."""
    assert sizes.resized({"s": np.array(3)}, {"s": []}, {})["s"].shape == ()

    class Ends:
        signature: tuple[list[Any], list[tuple[str, str]]] = ([], [("y", "")])
        left: ClassVar[list[str | None]] = [None, "the process that ran it was killed", "no such size", None]

        def run(self, feeds: Any) -> list[int]:
            if why := self.left.pop(0):
                raise RunFailure(why)
            return [1]

        def close(self) -> None:
            pass

    monkeypatch.setattr("tilegraph.verify.run.open_runner", lambda what, isolate: Ends() if isolate else None)
    assert [sizes.apart(None, {}) for _ in "abcd"] == [
        ([{"y": 1}], ""), ([None], sizes.ENDED), ([None], "no such size"), ([{"y": 1}], "")]
    Ends.left = [None, "the process that ran it was killed", "no such size", None]
    answers, fatal = sizes.references_of(Ends, [(word, {}) for word in "abcd"])
    assert answers == [{"y": 1}, None, None, {"y": 1}]
    assert fatal == ["b"]
