"""Weights that are copied into large pages: which, how often, and that they are the same."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tilegraph.runtime as runtime

SIZE = 1 << 19  # elements of a matrix: 2 MB

# y = where w lies, and what its last element is; arguments w, y, scratch, begin, end.
WHERE = r"""
KERNEL(where) {
  int bad_tag = 0;
  const float* w = POINTER(const float, 0); int64_t* y = POINTER(int64_t, 1);
  CHECK_TAGS(5);
  y[0] = (int64_t)w; y[1] = (int64_t)w[(1 << 19) - 1];
  return 0;
}
"""


@pytest.fixture
def folder(compile_kernels: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Two kernels with a matrix each, 2 MB, in a data file; `units` of work a call."""

    def make(units: int = 1) -> Path:
        weights = [ep.tensor(f"w{k}", "float", SIZE, constant=True) for k in (0, 1)]
        spec = ep.program([ep.tensor("x", "float", "n"), *weights], [ep.tensor(f"y{k}", "int64", 2) for k in (0, 1)],
                          [ep.call("where", [ep.source(k + 1), ep.result(k)], [], units, grain=1) for k in (0, 1)])
        values = {f"w{k}": np.full(SIZE, 7 + k, np.float32) for k in (0, 1)}
        path = ep.Artifact(compile_kernels(WHERE), {"p": spec}, initializers=values).write(tmp_path / f"u{units}")
        onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="model.onnx.data")
        return path.parent

    return make


def places(session: Any) -> list[int]:
    """Where the kernels read their matrices, which are what they should be."""
    found = session.run(None, {"x": np.zeros(1, np.float32)})
    assert [int(y[1]) for y in found] == [7, 8]
    return [int(y[0]) for y in found]


def mapped(place: int) -> str:
    """The file that is mapped there; nothing for other memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if low <= place < high:
            return " ".join(line.split()[5:])
    raise AssertionError("not mapped")


def anonymous() -> int:
    """Bytes of this process that lie in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def start(folder: Path, megabytes: int | str) -> Any:
    return runtime.session(folder, threads=1, options={"copied_weights_mb": str(megabytes)})


def test_copies_are_shared_and_go(folder: Callable[..., Path]) -> None:
    where = folder()
    sessions = [start(where, 4) for _ in range(2)]
    first, second = map(places, sessions)
    assert first == second
    assert [mapped(place) for place in first] == ["", ""]
    del sessions
    gc.collect()
    before = anonymous()
    for _ in range(4):
        places(start(where, 4))
        gc.collect()
    assert anonymous() - before < 8 << 20  # 16 MB would be left


@pytest.mark.parametrize(("megabytes", "copied"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_no_more_than_is_allowed(folder: Callable[..., Path], megabytes: int, copied: int) -> None:
    session = start(folder(), megabytes)
    found = [mapped(place) for place in places(session)]
    assert [name.endswith("model.onnx.data") for name in found] == [k >= copied for k in range(2)]


def test_what_calls_compute_with_for_long_stays(folder: Callable[..., Path]) -> None:
    session = start(folder(units=8), 64)
    assert all(mapped(place).endswith("model.onnx.data") for place in places(session))


def test_a_changed_file_is_copied_again(folder: Callable[..., Path]) -> None:
    """The next session of a folder whose weights are others now must not get the copies of the first one."""
    where = folder()
    first = start(where, 4)
    places(first)
    data = where / "model.onnx.data"
    other = np.frombuffer(data.read_bytes(), np.float32) + 1
    data.unlink()
    data.write_bytes(other.tobytes())
    second = start(where, 4)
    found = second.run(None, {"x": np.zeros(1, np.float32)})
    assert [int(y[1]) for y in found] == [8, 9]
    assert [mapped(int(y[0])) for y in found] == ["", ""]
    places(first)


@pytest.mark.parametrize("value", ["-1", "1.5", "", "many", str(1 << 21)])
def test_values_that_are_refused(folder: Callable[..., Path], value: str) -> None:
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=r"copied_weights_mb .* from 0 to"):
        start(folder(), value)
