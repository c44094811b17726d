"""The whole pipeline on real exports: same answers, sound models, shapes that hold at run time.

Bound: integers, booleans and shapes equal; floats within 16 eps of the output's type relative to the largest
magnitude of the output. Only folded constants may differ (a sine computed here in double precision, there in single);
most models are bitwise equal, and at least nine in ten of a spread must be.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from norm_ort import Arrays, corpus_feeds, run, session, spread

from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.passes.instruments import CheckInstrument
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.normalise import NORMALISE, Shapes, symbolic_contents
from tilegraph.rewrites.normalise.infer.info import shape_of
from tilegraph.spec.dims import Dim

EPS_FACTOR = 16
ILL_TYPED = {"gpt2-ts17-sdpa-static-fp16"}  # float16 scales on float data: wrong as exported, ONNX Runtime refuses it


def normalised(path: Path, *, check: bool = True) -> ir.Model:
    model = load(path)
    instruments = [CheckInstrument(onnx_checker=False)] if check else []
    Pipeline(NORMALISE, instruments=instruments).run(model, PassContext())
    check_model(model, types=path.stem not in ILL_TYPED)
    return model


def compare(name: str, before: Arrays, after: Arrays) -> bool:
    """Fails beyond the bound; returns whether all is bitwise equal."""
    assert before.keys() == after.keys()
    exact = True
    for key, expected in before.items():
        actual = after[key]
        if not isinstance(expected, np.ndarray):
            assert expected == actual, f"{name}: {key}"
            continue
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape), f"{name}: {key}"
        same = np.array_equal(expected, actual, equal_nan=expected.dtype.kind == "f")
        exact &= same
        if same:
            continue
        assert expected.dtype.kind == "f", f"{name}: {key} differs"
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(finite, np.isfinite(actual), err_msg=f"{name}: {key}")
        scale = np.abs(expected[finite].astype(np.float64)).max(initial=0)
        error = np.abs(expected[finite].astype(np.float64) - actual[finite]).max(initial=0)
        bound = EPS_FACTOR * np.finfo(expected.dtype).eps * scale
        assert error <= bound, f"{name}: {key} is off by {error}, allowed {bound}"
    return exact


def answers(path: Path) -> list[bool]:
    """For each input set that the original accepts: whether the normalised model is bitwise equal."""
    model = normalised(path)
    proto = ir.to_proto(model).SerializeToString()
    found = []
    for feeds in corpus_feeds(path):
        try:
            expected = run(str(path), feeds)
        except Exception:
            continue  # the catalogue lists exports that ONNX Runtime cannot run
        found.append(compare(path.stem, expected, run(proto, feeds)))
    return found


def test_a_spread_of_the_corpus(corpus: Path) -> None:
    paths = spread(sorted(corpus.glob("*.onnx")), 8)
    assert len(paths) > 30
    results = {p.stem: answers(p) for p in paths}
    compared = [exact for found in results.values() for exact in found]
    assert len([r for r in results.values() if r]) >= len(paths) - 2, "too few models run at all"
    assert sum(compared) >= 0.9 * len(compared)


@pytest.mark.slow
def test_the_whole_corpus(corpus: Path) -> None:
    paths = sorted(corpus.glob("*.onnx"))
    assert len(paths) == 266
    results = {p.stem: answers(p) for p in paths}
    assert len([r for r in results.values() if r]) >= 260
    compared = [exact for found in results.values() for exact in found]
    assert sum(compared) >= 0.95 * len(compared)


def observed(path: Path, model: ir.Model, feeds: Arrays) -> Arrays:
    """Every value of the main graph of the original, as ONNX Runtime computes it."""
    proto = ir.to_proto(load(path))
    have = {o.name for o in proto.graph.output}
    wanted = [o.name for n in model.graph for o in n.outputs if o.name and o.name not in have]
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
    return run(proto, feeds)


def bindings(model: ir.Model, feeds: Arrays) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        for dim, size in zip(shape_of(value.shape) or (), feeds[value.name or ""].shape, strict=True):
            if dim is not None and dim.bare_symbol is not None:
                found.setdefault(dim.bare_symbol, size)
    return found


def holds(dim: Dim | None, size: int, binding: dict[str, int]) -> bool:
    return dim is None or not dim.symbols <= binding.keys() or dim.evaluate(binding) == size


def shapes_hold(path: Path) -> int:
    """Checks every inferred extent, type and content against a run; returns how many values were checked."""
    model = load(path)
    Shapes().run(model, PassContext())
    checked = 0
    for feeds in corpus_feeds(path):
        try:
            session(str(path)).run(None, feeds)
        except Exception:
            continue  # the original does not run
        binding = bindings(model, feeds)
        real = observed(path, model, feeds)
        for node in model.graph:
            for output in node.outputs:
                array = real.get(output.name or "")
                shape = shape_of(output.shape)
                if not isinstance(array, np.ndarray) or shape is None:
                    continue
                label = f"{path.stem}: {node.op_type} {output.name} {output.shape} against {array.shape} at {binding}"
                assert len(shape) == array.ndim, label
                assert all(holds(d, s, binding) for d, s in zip(shape, array.shape, strict=True)), label
                assert output.dtype is None or array.dtype == object or output.dtype.numpy() == array.dtype, label
                contents = symbolic_contents(output)
                if contents is not None:
                    elements = [int(e) for e in array.reshape(-1)]
                    assert all(holds(d, e, binding) for d, e in zip(contents, elements, strict=True)), label
                checked += 1
    return checked


def test_inferred_shapes_hold_at_run_time(corpus: Path) -> None:
    """Models with dynamic axes are run at two sizes each."""
    dynamic = [p for p in sorted(corpus.glob("*.onnx")) if "dyn" in p.stem or "batch" in p.stem]
    assert sum(shapes_hold(p) for p in spread(dynamic, 6)) > 3000


@pytest.mark.slow
def test_inferred_shapes_hold_at_run_time_everywhere(corpus: Path) -> None:
    assert sum(shapes_hold(p) for p in sorted(corpus.glob("*.onnx"))) > 50000
