"""The JSON that other tools rely on, and the table."""

from __future__ import annotations

import io
import json
import math

from rich.console import Console

from tilegraph.bench import BenchResult, ModelTiming, table
from tilegraph.bench.table import seconds


def _result() -> BenchResult:
    first = ModelTiming("a.onnx", "dir/a.onnx", "CPUExecutionProvider", 2e-3, 1.9e-3, 2.2e-3, 1.0, 1.0, 1.0, 0.012,
                        100_000_000, 60_000_000, 50_000_000, 1, (2e-3,))
    other = ModelTiming("a.tilegraph", "a.tilegraph/model.onnx", "TileGraphExecutionProvider", 5e-4, 4e-4, 6e-4, 4.0,
                        3.8, 4.2, math.nan, 0, 0, 0, 4, (5e-4,))
    return BenchResult(1, 30, {"cpu": "A CPU", "python": "3", "tilegraph": "1", "onnxruntime": "2"}, (first, other),
                       0.957, (1,), {"x": ("float32", (1, 4))}, ("a note",))


def test_json_has_the_documented_fields() -> None:
    data = json.loads(json.dumps(_result().to_json()))
    assert {"threads", "versions", "models"} <= data.keys()
    fields = {"path", "provider", "median_s", "p10_s", "p90_s", "ratio", "create_s", "peak_bytes", "ratio_low",
              "ratio_high"}
    assert all(fields <= model.keys() for model in data["models"])
    assert data["models"][1]["ratio"] == 4.0
    assert data["inputs"] == {"x": {"dtype": "float32", "shape": [1, 4]}}


def test_the_table_shows_ratios_with_intervals_the_cpu_and_the_notes() -> None:
    stream = io.StringIO()
    Console(file=stream, width=140).print(table(_result()))
    text = stream.getvalue()
    for part in ("A CPU", "4.00 [3.80, 4.20]", "2 ms", "500 µs", "100 MB", "TileGraph", "a note", "96% interval"):
        assert part in text, part


def test_durations_have_three_digits_and_a_unit() -> None:
    shown = [seconds(v) for v in (1.5, 0.0123456, 7.77e-6, 3e-9, math.nan)]
    assert shown == ["1.5 s", "12.3 ms", "7.77 µs", "3 ns", "-"]
