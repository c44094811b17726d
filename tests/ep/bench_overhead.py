"""What a node of our provider costs beyond its kernel: run it by hand, nothing here is a test.

    python tests/ep/bench_overhead.py [--nodes 100] [--rounds 400]

A chain of nodes that each run an empty C kernel, against the same chain of ONNX Runtime's own Neg of one
element, with 0, 30 and 200 constant inputs a node. The cost of a node is the slope between a short and a
long chain, so that what a session's run costs by itself drops out. Medians; one thread.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import ep_support as ep  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnx import helper  # noqa: E402

import tilegraph.runtime as runtime  # noqa: E402

EMPTY = "KERNEL(empty) { return 0; }\n"


def ours(library: Path, folder: Path, nodes: int, constants: int, dim: str | int) -> Any:
    weights = [ep.tensor(f"w{i}", "float", 1, constant=True) for i in range(constants)]
    spec = ep.program([ep.tensor("x", "float", dim), *weights], [ep.tensor("y", "float", dim)],
                      [ep.call("empty", [ep.source(0), ep.result(0)], [], dim)])
    names = [w.name for w in weights]
    chain = [ep.Node("p", [f"v{i}" if i else "x", *names], [f"v{i + 1}" if i + 1 < nodes else "y"], f"n{i}")
             for i in range(nodes)]
    artifact = ep.Artifact(library, {"p": spec}, nodes=chain, initializers={n: np.ones(1, np.float32) for n in names})
    return runtime.session(artifact.write(folder), threads=1)


def theirs(nodes: int) -> Any:
    chain = [helper.make_node("Neg", [f"v{i}" if i else "x"], [f"v{i + 1}" if i + 1 < nodes else "y"])
             for i in range(nodes)]
    value = [helper.make_tensor_value_info(n, 1, [1]) for n in ("x", "y")]
    model = helper.make_model(helper.make_graph(chain, "g", value[:1], value[1:]), ir_version=9,
                              opset_imports=[helper.make_opsetid("", 17)])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def per_node(short: Any, long: Any, difference: int, rounds: int) -> float:
    """Microseconds a node: the median of paired differences."""
    x = ort.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32))
    bindings = []
    for session in (short, long):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_output("y")
        bindings.append((session, binding))
    samples = []
    for _ in range(rounds):
        times = []
        for session, binding in bindings:
            start = time.perf_counter()
            session.run_with_iobinding(binding)
            times.append(time.perf_counter() - start)
        samples.append((times[1] - times[0]) / difference * 1e6)
    return statistics.median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100, help="nodes of the long chain")
    parser.add_argument("--rounds", type=int, default=400)
    arguments = parser.parse_args()
    many, few = arguments.nodes, 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = ep.compile_c(EMPTY, folder / "k.so")
        sessions = {"onnxruntime's Neg": (theirs(few), theirs(many))}
        for constants in (0, 30, 200):
            for dim in (1, "n"):
                key = f"ours, {constants:3} constants, {'static' if dim == 1 else 'dynamic'} shape"
                sessions[key] = (ours(library, folder / f"{constants}{dim}a", few, constants, dim),
                                 ours(library, folder / f"{constants}{dim}b", many, constants, dim))
        print(f"onnxruntime {ort.__version__}, {many - few} nodes, microseconds a node")
        for key, (short, long) in sessions.items():
            print(f"  {key:40} {per_node(short, long, many - few, arguments.rounds):.3f}")


if __name__ == "__main__":
    main()
