"""Large weights never become anonymous memory, on the way from load through normalisation to save."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

SIZE, LAYERS = 2048, 24  # 16 MiB each, 384 MiB in all

SCRIPT = """
import sys, threading, time
from pathlib import Path
from tilegraph.io import load, save
from tilegraph.passes import PassContext, Pipeline
from tilegraph.passes.instruments import CheckInstrument
from tilegraph.rewrites.normalise import NORMALISE

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) << 10

peak = start = anonymous()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.005)
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
folder = Path(sys.argv[1])
model = load(folder / "m.onnx")
Pipeline(NORMALISE, instruments=[CheckInstrument()]).run(model, PassContext())
save(model, folder / "out.onnx")
done = True
watcher.join()
print(peak - start)
"""


def write_model(folder: Path) -> int:
    """A chain of MatMuls with transposed weights, which folding would love to move, in a sparse file."""
    each = SIZE * SIZE * 4
    rng = np.random.default_rng(0)
    nodes, tensors, last = [], [], "x"
    with (folder / "m.data").open("wb") as file:
        for i in range(LAYERS):
            file.seek(i * each + each // 2)
            file.write(np.float32(rng.normal(size=64)).tobytes())
            tensor = onnx.TensorProto(name=f"w{i}", data_type=1, dims=[SIZE, SIZE], data_location=1)
            for key, value in (("location", "m.data"), ("offset", i * each), ("length", each)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            nodes.append(helper.make_node("Transpose", [f"w{i}"], [f"t{i}"], perm=[1, 0]))
            nodes.append(helper.make_node("MatMul", [last, f"t{i}"], [f"h{i}"]))
            last = f"h{i}"
        file.truncate(LAYERS * each)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", SIZE])],
                              [helper.make_tensor_value_info(last, 1, ["n", SIZE])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return LAYERS * each


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_anonymous_memory_stays_small(tmp_path: Path) -> None:
    size = write_model(tmp_path)
    root = Path(__file__).resolve().parents[3]
    result = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=root, capture_output=True, text=True,
                            check=False)
    assert result.returncode == 0, result.stderr
    grown = int(result.stdout)
    assert grown < 0.3 * size
    assert grown < 100 << 20, f"{grown >> 20} MiB"
    assert (tmp_path / "out.onnx.data").stat().st_size == size  # nothing was folded or lost
