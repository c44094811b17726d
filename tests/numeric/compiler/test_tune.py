"""`--tune`: what loses against ONNX Runtime stays with it, times are kept, the budget is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.numeric.compiler.served import reference, served
from tests.unit.fusion.parse import model as parsed
from tilegraph.bench.tune import Measure
from tilegraph.cli import main
from tilegraph.compiler import OptimizedModel, optimize
from tilegraph.errors import UsageError
from tilegraph.spec.schedule import Schedule
from tilegraph.verify.bisect.oracle import options_of

W = "w = Constant<value = float[64,64] {" + ", ".join(str((k * 7919 % 113 - 56) / 560) for k in range(64 * 64)) + "}>()"


def network() -> ir.Model:
    """A product with its activation, and a normalisation: two kernels."""
    return parsed(f"""(float[9,64] x) => (float[9,64] y) {{ {W} last = Constant<value = int64[1] {{-1}}>()
        t = MatMul(x, w) u = Tanh(t) m = ReduceMean(u, last) d = Sub(u, m) e = Mul(d, d) v = ReduceMean(e, last)
        s = Sqrt(v) y = Div(d, s) }}""")


class Said:
    """Says that products lose, and counts how often it is asked. `gains`: what the last schedule takes of the time."""

    machine = "a machine of this test"

    def __init__(self, ratio: float = 2.0, gains: float = 1.0) -> None:
        self.ratio, self.gains = ratio, gains
        self.asked: list[str] = []

    def __call__(self, original: ir.Model, ours: Sequence[Path]) -> tuple[Sequence[float], float]:
        assert all((folder / "manifest.json").is_file() for folder in ours)
        (call,) = original.graph
        self.asked.append(call.op_type.partition("_")[0])
        usual = self.ratio if call.op_type.startswith("Gemm") else 0.5
        return [*[usual] * (len(ours) - 1), usual * self.gains], 1.0


def tuned(measure: object, cache: Path, **options: object) -> OptimizedModel:
    return optimize(network(), offload="all", cache_dir=cache, measure=measure, **options)  # type: ignore[arg-type]


def reasons(made: OptimizedModel, taken: bool) -> dict[str, str]:
    return {d.op.partition("_")[0]: d.reason for d in made.diagnostics.of("tune", taken=taken)}


def test_what_loses_stays_with_onnx_runtime_and_times_are_kept(tmp_path: Path) -> None:
    said = Said()
    made = tuned(said, tmp_path)
    assert sorted(said.asked) == ["Gemm", "Region"]
    assert list(reasons(made, False)) == ["Gemm"]
    assert "2000000.0 µs against 1000000.0 µs" in reasons(made, False)["Gemm"]
    assert list(reasons(made, True)) == ["Region"]
    assert made.summary.engines == {"TileGraphExecutionProvider": 1, "onnxruntime": 1}
    assert made.summary.options["tune"] is True
    feeds = {"x": np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)}
    for got, want in zip(served(made, feeds), reference(ir.to_proto(network()), feeds), strict=True):
        assert np.allclose(got, want, rtol=0, atol=2e-5)
    again = tuned(said, tmp_path)
    assert len(said.asked) == 2
    assert "kept from before" in reasons(again, False)["Gemm"]


def test_what_wins_or_draws_becomes_kernels(tmp_path: Path) -> None:
    made = tuned(Said(1.04), tmp_path)
    assert made.summary.engines == {"TileGraphExecutionProvider": 1}
    assert not reasons(made, False)


def test_the_fastest_schedule_is_taken_and_said(tmp_path: Path) -> None:
    made = tuned(Said(1.5, 0.5), tmp_path)
    assert "with vectors=3 (1500000.0 without)" in reasons(made, True)["Gemm"]
    product = next(m for m in made.summary.tuned if m["composite"].startswith("Gemm"))
    assert product["schedule"] == {"vectors": 3}
    options = options_of(made.save(tmp_path / "m.tilegraph"))
    assert options is not None
    assert options.schedules[product["composite"]] == Schedule(vectors=3), "bisection checks the same kernel"
    assert product["candidates_s"] == {"vectors=1": 1.5, "vectors=3": 0.75}
    assert made.manifest is not None
    usual = tuned(Said(1.0, 0.98), tmp_path / "other")  # less than noise
    assert reasons(usual, True)["Gemm"].endswith("2 other schedules timed")
    assert usual.manifest is not None
    symbols = [{call.symbol for p in m.programs.values() for call in p.calls} for m in (made.manifest, usual.manifest)]
    assert len(symbols[0] & symbols[1]) == 1, "another kernel for the product, the same for the region"
    feeds = {"x": np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)}
    for got, want in zip(served(made, feeds), reference(ir.to_proto(network()), feeds), strict=True):
        assert np.allclose(got, want, rtol=0, atol=2e-5)


def test_a_gain_that_does_not_come_again_is_noise(tmp_path: Path) -> None:
    class Lucky(Said):
        def __call__(self, original: ir.Model, ours: Sequence[Path]) -> tuple[Sequence[float], float]:
            times, runtime = super().__call__(original, ours)
            return (times if len(ours) > 2 else [times[0]] * len(times)), runtime

    said = Lucky(1.0, 0.5)
    made = tuned(said, tmp_path)
    assert said.asked.count("Gemm") == 2
    (product,) = (m for m in made.summary.tuned if m["composite"].startswith("Gemm"))
    assert product["schedule"] == {}
    assert product["candidates_s"] == {"vectors=1": 1.0, "vectors=3": 1.0}


def test_the_budget_is_kept(tmp_path: Path) -> None:
    said = Said()
    made = tuned(said, tmp_path, budget=0.0)
    assert not said.asked
    assert set(reasons(made, False)) == {"Gemm", "Region"}
    assert made.summary.engines == {"TileGraphExecutionProvider": 1}


def test_what_cannot_be_measured_is_left_to_the_cost_model(tmp_path: Path) -> None:
    class Broken(Said):
        def __call__(self, original: ir.Model, ours: Sequence[Path]) -> tuple[Sequence[float], float]:
            raise RuntimeError("no such luck")

    made = tuned(Broken(), tmp_path)
    assert all("no such luck" in reason for reason in reasons(made, False).values())
    assert made.summary.engines == {"TileGraphExecutionProvider": 1}


def test_a_real_measurement(tmp_path: Path) -> None:
    made = optimize(parsed(f"(float[9,64] x) => (float[9,64] y) {{ {W} y = MatMul(x, w) }}"), offload="all",
                    cache_dir=tmp_path, measure=Measure())
    (measured,) = made.diagnostics.of("tune")
    assert measured.op.startswith("Gemm_")
    times = [*(measured.data[side] for side in ("kernel_s", "default_s", "runtime_s")),
             *measured.data["candidates_s"].values()]
    assert len(times) == 5
    assert all(1e-7 < seconds < 1e-1 for seconds in times)


def test_only_for_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="leave --mcpu and --dry-run out"):
        tuned(Said(), tmp_path, mcpu="haswell")
    model = tmp_path / "m.onnx"
    model.write_bytes(b"")
    assert main(["optimize", str(model), "--tune-budget", "3"]) == 2
    assert "--tune, which is not given" in capsys.readouterr().err
