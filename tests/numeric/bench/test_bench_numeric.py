"""Whole comparisons of small models in ONNX Runtime: who wins, what is refused, what is noted."""

from __future__ import annotations

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilegraph.bench import Peer, bench
from tilegraph.bench.process import WorkerOutOfMemory
from tilegraph.errors import InputError, UsageError


def _model(path: Path, layers: int, size: int = 192, dtype: int = TensorProto.FLOAT) -> Path:
    """`layers` products of x [size, size] with a weight, none of which can be left out."""
    weight = numpy_helper.from_array((np.eye(size) * 0.5).astype(np.float32), "w")
    names = ["x", *(f"v{i}" for i in range(layers - 1)), "y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in itertools.pairwise(names)]
    x, y = (helper.make_tensor_value_info(n, dtype, ["rows", size]) for n in ("x", "y"))
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight]), ir_version=9,
                                opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def _one_node(path: Path, op: str, kind: int, **attributes: object) -> Path:
    value = [helper.make_tensor_value_info(n, kind, ["n"]) for n in ("x", "y")]
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    onnx.save(helper.make_model(helper.make_graph([node], "g", value[:1], value[1:]), ir_version=9,
                                opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


FEEDS = {"x": np.ones((64, 192), np.float32)}


def test_a_model_with_eight_times_the_work_is_slower_and_the_interval_says_so(tmp_path: Path) -> None:
    small, large = _model(tmp_path / "small.onnx", 2), _model(tmp_path / "large.onnx", 16)
    seen: list[tuple[int, int]] = []
    result = bench([large, small], runs=8, inputs=FEEDS, progress=lambda done, of: seen.append((done, of)))
    first, second = result.models
    assert (first.ratio, first.ratio_low, first.ratio_high) == (1.0, 1.0, 1.0)
    assert second.ratio_low > 2.0
    assert second.ratio_low <= second.ratio <= second.ratio_high
    assert second.median_s < first.median_s
    assert first.p10_s <= first.median_s <= first.p90_s
    assert len(first.samples_s) == 8
    assert seen[-1] == (8, 8)
    assert result.coverage >= 0.95
    for model in result.models:
        assert 0 < model.create_s < 5
        assert model.repeats * model.median_s > 3e-4
        assert model.peak_bytes > model.base_bytes > 10_000_000
        assert model.anon_bytes > 1_000_000


def test_session_options_and_environment_reach_the_worker(tmp_path: Path) -> None:
    model = _model(tmp_path / "m.onnx", 2)
    with pytest.raises(InputError, match=r"m\.onnx: .*(external|custom|wrong|invalid|parse)"):
        bench([Peer("m", model, options={"session.intra_op_thread_affinities": "wrong"})], threads=2, runs=1,
              inputs=FEEDS)
    result = bench([Peer("plain", model), Peer("off", model, optimization="disable")], runs=2, inputs=FEEDS,
                   create=False)
    assert [m.name for m in result.models] == ["plain", "off"]
    assert np.isnan(result.models[0].create_s)
    assert any("75%" in note or "50%" in note for note in result.notes)


def test_an_npz_file_can_be_fed(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **FEEDS)
    result = bench([_model(tmp_path / "m.onnx", 2)], runs=1, inputs=tmp_path / "in.npz", create=False)
    assert result.inputs == {"x": ("float32", (64, 192))}


def test_missing_and_misshapen_inputs_name_the_model_and_the_input(tmp_path: Path) -> None:
    model = _model(tmp_path / "m.onnx", 2)
    with pytest.raises(InputError, match=r"m\.onnx: the inputs lack 'x'; they have z"):
        bench([model], runs=1, inputs={"z": np.ones(1, np.float32)}, create=False)
    with pytest.raises(InputError, match=r"m\.onnx: .*x"):
        bench([model], runs=1, inputs={"x": np.ones((2, 3), np.float32)}, create=False)
    (tmp_path / "bad.npz").write_text("no archive")
    with pytest.raises(InputError, match=r"bad\.npz: not an \.npz file"):
        bench([model], runs=1, inputs=tmp_path / "bad.npz")


def test_a_model_that_does_not_load_is_an_input_error(tmp_path: Path) -> None:
    bad = _one_node(tmp_path / "bad.onnx", "NoSuchOp", TensorProto.FLOAT)
    with pytest.raises(InputError, match=r"bad\.onnx: .*NoSuchOp"):
        bench([bad], runs=1, inputs={"x": np.ones(3, np.float32)})


def test_senseless_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model"):
        bench([])
    with pytest.raises(UsageError, match="threads"):
        bench([_model(tmp_path / "m.onnx", 1)], threads=0)


def test_strings_run_unbound_and_the_result_says_so(tmp_path: Path) -> None:
    model = _one_node(tmp_path / "s.onnx", "Identity", TensorProto.STRING)
    result = bench([model], runs=1, inputs={"x": np.array(["a", "bc"])}, create=False)
    assert any("not bound" in note for note in result.notes)


def test_bfloat16_inputs_pass_through(tmp_path: Path) -> None:
    model = _one_node(tmp_path / "b.onnx", "Cast", TensorProto.BFLOAT16, to=TensorProto.BFLOAT16)
    result = bench([model], runs=1, inputs={"x": np.ones(5, ml_dtypes.bfloat16)}, create=False)
    assert result.models[0].median_s > 0


def test_inputs_are_made_when_none_are_given(tmp_path: Path) -> None:
    result = bench([_model(tmp_path / "m.onnx", 2)], runs=1, dims={"rows": 5}, create=False)
    assert result.inputs == {"x": ("float32", (5, 192))}


def test_made_inputs_have_sizes_that_the_model_accepts(tmp_path: Path) -> None:
    """A reshape to rows of 32 refuses the preferred size (16) and takes a later one."""
    value = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"]),
             helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    shape = numpy_helper.from_array(np.array([-1, 32], np.int64), "s")
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    onnx.save(helper.make_model(helper.make_graph([node], "g", value[:1], value[1:], [shape]), ir_version=9,
                                opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "r.onnx")
    (_, made), = bench([tmp_path / "r.onnx"], runs=1, create=False).inputs.values()
    assert np.prod(made) % 32 == 0
    with pytest.raises(InputError, match=r"r\.onnx"):
        bench([tmp_path / "r.onnx"], runs=1, create=False, dims={"batch": 1, "length": 7})


def test_workers_are_bound_to_as_many_cpus_as_threads(tmp_path: Path) -> None:
    import os

    model = _model(tmp_path / "m.onnx", 2)
    for threads in (1, 2, 3):
        result = bench([model], threads=threads, runs=1, inputs=FEEDS, create=False)
        if threads > 2:
            assert result.cpus is None
        elif len(os.sched_getaffinity(0)) >= threads:
            assert result.cpus is not None
            assert len(result.cpus) == threads


def test_workers_whose_memory_does_not_fit_together_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilegraph.bench.seats.available", lambda: 1_000_000)  # less than the first worker has
    small, large = _model(tmp_path / "small.onnx", 2), _model(tmp_path / "large.onnx", 16)
    result = bench([large, small], runs=2, inputs=FEEDS, create=False)
    assert any("one worker at a time" in note for note in result.notes)
    assert [len(m.samples_s) for m in result.models] == [2, 2]
    assert all(m.peak_bytes > m.base_bytes > 10_000_000 for m in result.models)
    assert result.models[1].ratio > 2.0


def test_a_worker_that_takes_the_last_memory_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilegraph.bench.process.available", lambda: 1000)
    monkeypatch.setattr("tilegraph.bench.process.LARGE_BYTES", 150_000_000)
    feeds = {"x": np.ones((80_000, 512), np.float32)}  # 164 MB each for x and y
    with pytest.raises(WorkerOutOfMemory, match=r"m was ended during 'open', because it had taken 0\.[2-4] GB"):
        bench([Peer("m", _model(tmp_path / "m.onnx", 1, 512))], runs=1, inputs=feeds, create=False)
