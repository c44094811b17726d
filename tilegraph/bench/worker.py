"""The process that runs one peer: `python -m tilegraph.bench.worker`, driven over pipes.

One JSON object a line in, one out. Commands: `start` {cpus}, `create` {peer, threads}, `open` {peer, threads,
feeds, names}, `sample` {repeats, warm}, `memory`. It sleeps on its input between commands, so that only one peer runs
at a time. Everything else that is printed goes to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any


class Session:
    """A session with inputs and outputs bound once, where the types allow it."""

    def __init__(self, peer: dict[str, Any], threads: int) -> None:
        self._session = _create(peer, threads)
        self._binding: Any = None
        self._feeds: dict[str, Any] = {}

    def bind(self, file: str, names: list[str]) -> str:
        """Loads the feeds, array i of the .npz file for names[i], and runs once; says how runs are made: "bound" or
        "plain"."""
        import numpy as np

        with np.load(file, allow_pickle=False) as arrays:
            feeds = {name: arrays[f"arr_{i}"] for i, name in enumerate(names)}
        wanted = {v.name: v.type for v in self._session.get_inputs()}
        missing = [name for name in wanted if name not in feeds]
        if missing:
            raise ValueError(f"the inputs lack {', '.join(map(repr, missing))}; they have {', '.join(feeds) or 'none'}")
        values = {name: _value(feeds[name], kind) for name, kind in wanted.items()}
        plain = [v.type for v in (*self._session.get_inputs(), *self._session.get_outputs())
                 if not v.type.startswith("tensor(") or v.type == "tensor(string)"]
        if plain:
            # Sequences, optionals and strings cannot be bound.
            self._feeds = {n: feeds[n] if wanted[n] == "tensor(string)" else values[n] for n in wanted}
            self.run()
            return "plain"
        binding = self._session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for output in self._session.get_outputs():
            binding.bind_output(output.name)
        self._session.run_with_iobinding(binding)
        # Now that the sizes are known, write to the same memory on every run.
        outputs = binding.get_outputs()
        binding.clear_binding_outputs()
        for output, value in zip(self._session.get_outputs(), outputs, strict=True):
            binding.bind_ortvalue_output(output.name, value)
        self._binding = binding
        self.run()
        return "bound"

    def run(self) -> None:
        if self._binding is not None:
            # Without RunOptions: onnxruntime's Python adds 25 µs to each run for them, whoever is measured.
            self._session.run_with_iobinding(self._binding)
        else:
            self._session.run(None, self._feeds)

    def sample(self, repeats: int, warm: bool) -> float:
        """Seconds per run; `warm` first makes one that is not counted, since another peer has had the caches."""
        if warm:
            self.run()
        start = time.perf_counter()
        for _ in range(repeats):
            self.run()
        return (time.perf_counter() - start) / repeats


def _value(array: Any, kind: str) -> Any:
    import numpy as np
    import onnxruntime as ort

    if kind == "tensor(string)":
        return None
    if kind == "tensor(bfloat16)" or kind.startswith("tensor(float8"):
        from onnx import TensorProto

        name = kind[len("tensor("):-1].upper()
        raw = np.ascontiguousarray(array).view(np.uint16 if kind == "tensor(bfloat16)" else np.uint8)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, TensorProto.DataType.Value(name))
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array) if array.ndim else array)


def _create(peer: dict[str, Any], threads: int) -> Any:
    """A new InferenceSession; raises what ONNX Runtime raises."""
    import onnxruntime as ort

    levels = {"all": "ORT_ENABLE_ALL", "layout": "ORT_ENABLE_LAYOUT", "extended": "ORT_ENABLE_EXTENDED",
              "basic": "ORT_ENABLE_BASIC", "disable": "ORT_DISABLE_ALL"}
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, levels[peer["optimization"]])
    options.log_severity_level = 3
    for key, value in peer["options"].items():
        options.add_session_config_entry(key, value)
    from tilegraph.spec.artifact import EP_NAME

    if peer["provider"] == EP_NAME:
        from tilegraph.runtime import session as plugin_session

        return plugin_session(peer["path"], threads=threads, options=peer["provider_options"], sess_options=options)
    providers: list[Any] = [(peer["provider"], peer["provider_options"])]
    if peer["provider"] != "CPUExecutionProvider":
        providers.append("CPUExecutionProvider")
    session = ort.InferenceSession(peer["path"], options, providers=providers)
    if peer["provider"] not in session.get_providers():
        raise RuntimeError(f"ONNX Runtime made a session without {peer['provider']}")
    return session


def _register(provider: str) -> None:
    from tilegraph.spec.artifact import EP_NAME

    if provider == EP_NAME:
        from tilegraph.runtime import register

        register()


class Worker:
    """The commands; each returns what is sent back."""

    def __init__(self) -> None:
        self._open: Session | None = None

    def start(self, cpus: list[int] | None) -> dict[str, Any]:
        # Before numpy and ONNX Runtime are imported, so that their thread counts see it.
        if cpus is None:
            return {"bound": False}
        try:
            os.sched_setaffinity(0, cpus)
        except (AttributeError, OSError) as error:
            return {"bound": False, "reason": str(error)}
        return {"bound": True}

    def create(self, peer: dict[str, Any], threads: int) -> dict[str, Any]:
        import onnxruntime  # noqa: F401  its import is no part of the session's creation

        _register(peer["provider"])
        gc.collect()
        start = time.perf_counter()
        session = _create(peer, threads)
        seconds = time.perf_counter() - start
        del session
        return {"seconds": seconds}

    def open(self, peer: dict[str, Any], threads: int, feeds: str, names: list[str]) -> dict[str, Any]:
        import onnxruntime  # noqa: F401

        from tilegraph.bench.machine import memory

        _register(peer["provider"])
        base = memory()["resident"]
        self._open = Session(peer, threads)
        mode = self._open.bind(feeds, names)
        gc.collect()
        gc.disable()
        return {"base": base, "mode": mode}

    def sample(self, repeats: int, warm: bool) -> dict[str, Any]:
        assert self._open is not None, "open comes first"
        return {"seconds": self._open.sample(repeats, warm)}

    def memory(self) -> dict[str, Any]:
        from tilegraph.bench.machine import memory

        return dict(memory())


def main() -> None:
    # Libraries may print: keep the pipe to ourselves and send file descriptor 1 to stderr.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"ok": True, **getattr(worker, request.pop("do"))(**request)}
        except Exception as error:
            reply = {"ok": False, "kind": type(error).__name__, "error": str(error)}
        pipe.write(json.dumps(reply) + "\n")
        pipe.flush()


if __name__ == "__main__":
    main()
