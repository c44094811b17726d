"""Models of many nodes and of many bytes.

    python -m tests.conformance.large nodes [--layers 200] [--kind transformer|image|both]
    python -m tests.conformance.large bytes [--gigabytes 2.2]

`nodes`: seconds of optimize (CPU time of the process is judged, wall time is shown), and that layers that are alike
have no more kernels than four of them. `bytes`: optimize, serve and verify of a model whose weights do not fit one
protobuf, each in a process of its own, with the peak of its anonymous memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIMIT_S = 30.0  # of CPU time, for 10,000 nodes: wall time is shown, but a busy machine stretches it
SHARE = 0.3  # of the weights' bytes that may be anonymous memory


class _Writer:
    def __init__(self, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:])))))

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def model(self, x: str, shape: list[Any], y: str) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "large", [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
                                  [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(v, n) for n, v in self.constants.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def transformer(layers: int, width: int = 64, heads: int = 4) -> onnx.ModelProto:
    """Encoder layers as PyTorch exports them, 49 nodes each, batch and length unknown."""
    w, depth = _Writer(), width // heads
    one, half, root, eps, two = w.const(1), w.const(0.5), w.const(np.sqrt(2)), w.const(1e-5), w.const(2)
    scale = w.const(np.sqrt(depth))
    shape, back = w.const([0, 0, heads, depth], np.int64), w.const([0, 0, width], np.int64)

    def dense(x: str, n: int, m: int) -> str:
        return w("Add", w("MatMul", x, w.weight(n, m)), w.const(w.rng.standard_normal(m) / 9))

    def norm(x: str) -> str:
        centred = w("Sub", x, w("ReduceMean", x, axes=[-1]))
        variance = w("ReduceMean", w("Pow", centred, two), axes=[-1])
        scaled = w("Div", centred, w("Sqrt", w("Add", variance, eps)))
        return w("Add", w("Mul", scaled, w.const(w.rng.random(width) + 0.5)), w.const(w.rng.standard_normal(width) / 9))

    x = "x"
    for _ in range(layers):
        q, k, v = (w("Reshape", dense(x, width, width), shape) for _ in range(3))
        q, k, v = (w("Transpose", t, perm=p) for t, p in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])))
        scores = w("Div", w("MatMul", q, k), scale)
        mixed = w("MatMul", w("Softmax", scores, axis=-1), v)
        mixed = w("Reshape", w("Transpose", mixed, perm=[0, 2, 1, 3]), back)
        x = norm(w("Add", x, dense(mixed, width, width)))
        wide = dense(x, width, 2 * width)
        gelu = w("Mul", w("Mul", wide, w("Add", w("Erf", w("Div", wide, root)), one)), half)
        x = norm(w("Add", x, dense(gelu, 2 * width, width)))
    return w.model("x", ["batch", "length", width], x)


def image(layers: int, channels: int = 16) -> onnx.ModelProto:
    """Residual blocks with squeeze-and-excite, 17 nodes each."""
    w = _Writer(2)
    x = "x"

    def normal(y: str) -> str:
        mean, var = w.const(w.rng.standard_normal(channels) / 9), w.const(w.rng.random(channels) + 0.5)
        return w("BatchNormalization", y, w.const(w.rng.random(channels) + 0.5), w.const(np.zeros(channels)), mean, var)

    for _ in range(layers):
        y = normal(w("Conv", x, w.weight(channels, channels, 3, 3), pads=[1, 1, 1, 1]))
        y = w("Mul", y, w("Sigmoid", y))
        y = normal(w("Conv", y, w.weight(channels, 1, 3, 3), pads=[1, 1, 1, 1], group=channels))
        y = w("Relu", y)
        gate = w("Relu", w("Conv", w("GlobalAveragePool", y), w.weight(4, channels, 1, 1)))
        gate = w("Sigmoid", w("Conv", gate, w.weight(channels, 4, 1, 1)))
        y = normal(w("Conv", w("Mul", y, gate), w.weight(channels, channels, 1, 1)))
        x = w("Relu", w("Add", x, y))
    return w.model("x", ["batch", channels, "height", "width"], x)


def nodes(model: onnx.ModelProto) -> dict[str, Any]:
    """Seconds of optimize, and what came of it."""
    from tilegraph.compiler import optimize

    started, cpu = time.perf_counter(), time.process_time()
    made = optimize(model)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    calls = [c.symbol for p in made.manifest.programs.values() for c in p.calls]
    return {"nodes": len(model.graph.node), "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1),
            "calls": len(calls), "kernels": len(set(calls)), "partitions": len(made.manifest.programs)}


def write_bytes(path: Path, gigabytes: float, width: int = 4096) -> int:
    """Products with residuals and a normalisation between, written tensor by tensor; bytes of all weights."""
    rng = np.random.default_rng(3)
    layers = max(1, round(gigabytes * 2**30 / (4 * width * width)))
    data = path.with_suffix(".data")
    graph = onnx.GraphProto(name="bytes")
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width]))
    x, offset = "x", 0
    scale = numpy_helper.from_array(np.full(width, 0.1, np.float32), "scale")
    graph.initializer.append(scale)
    with data.open("wb") as out:
        for k in range(layers):
            block = rng.standard_normal((width, width), dtype=np.float32) * np.float32(width**-0.5)
            out.write(block.tobytes())
            tensor = graph.initializer.add(name=f"w{k}", data_type=TensorProto.FLOAT, dims=[width, width],
                                           data_location=TensorProto.EXTERNAL)
            for key, value in (("location", data.name), ("offset", str(offset)), ("length", str(block.nbytes))):
                tensor.external_data.add(key=key, value=value)
            offset += block.nbytes
            graph.node.extend([helper.make_node("MatMul", [x, f"w{k}"], [f"p{k}"], name=f"p{k}"),
                               helper.make_node("Tanh", [f"p{k}"], [f"t{k}"], name=f"t{k}"),
                               helper.make_node("Add", [x, f"t{k}"], [f"a{k}"], name=f"a{k}"),
                               helper.make_node("LayerNormalization", [f"a{k}", "scale"], [f"y{k}"], name=f"y{k}")])
            x = f"y{k}"
    graph.output.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, None))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return offset


def peak_of(command: list[str]) -> tuple[int, float, str]:
    """The largest RssAnon of a process and its children in bytes, its seconds, and the end of what it said."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peak, started, done = 0, time.perf_counter(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, sum(_anonymous(pid) for pid in _tree(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    said = process.communicate()[0]
    done.set()
    watcher.join()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{said[-2000:]}")
    return peak, time.perf_counter() - started, said


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [p for child in task.read_text().split() for p in _tree(int(child))]
        except OSError:
            continue  # it ended
    return found


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


_SERVE = """
import sys, numpy as np, onnxruntime as ort, tilegraph
tilegraph.register()
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["TileGraphExecutionProvider", "CPUExecutionProvider"])
out, = session.run(None, {"x": np.random.default_rng(1).standard_normal((4, 4096)).astype(np.float32)})
assert np.isfinite(out).all()
"""


def many_bytes(gigabytes: float) -> list[dict[str, Any]]:
    """Each step with its peak of anonymous memory as a share of the weights."""
    made = []
    with tempfile.TemporaryDirectory(prefix="large-") as place:
        path, folder = Path(place) / "m.onnx", Path(place) / "m.tilegraph"
        size = write_bytes(path, gigabytes)
        steps = {"optimize": ["-m", "tilegraph", "optimize", str(path), "-o", str(folder)],
                 "serve": ["-c", _SERVE, str(folder / "model.onnx")],
                 "verify": ["-m", "tilegraph", "verify", str(path), str(folder), "--dim", "rows=4"]}
        for step, command in steps.items():
            peak, seconds, _ = peak_of([sys.executable, *command])
            made.append({"step": step, "share": round(peak / size, 3), "seconds": round(seconds, 1)})
            print(json.dumps({"gigabytes": round(size / 2**30, 2), **made[-1]}), flush=True)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("nodes", "bytes"))
    parser.add_argument("--layers", type=int, default=0, help="default: as many as make 10,000 nodes")
    parser.add_argument("--kind", choices=("transformer", "image", "both"), default="both")
    parser.add_argument("--gigabytes", type=float, default=2.2)
    given = parser.parse_args()
    if given.what == "bytes":
        return 1 if any(step["share"] > SHARE for step in many_bytes(given.gigabytes)) else 0
    failed = False
    for build, per_layer in ((transformer, 49), (image, 17)):
        if given.kind in (build.__name__, "both"):
            few = nodes(build(4))["kernels"]
            found = nodes(build(given.layers or 10_000 // per_layer + 1))
            print(json.dumps({"kind": build.__name__, **found, "kernels_of_4_layers": few}), flush=True)
            failed |= found["cpu_seconds"] > LIMIT_S * found["nodes"] / 10_000 or found["kernels"] > few
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
