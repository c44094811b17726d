"""Running a model: in this process, or in a child that may crash or take too long without harm.

Values are numpy arrays, lists of them (sequences), lists of dicts (maps) or None (an absent optional).
bfloat16 and float8 tensors are arrays of ml_dtypes.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import re
import select
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from tilegraph.errors import InputError
from tilegraph.spec.artifact import EP_NAME
from tilegraph.system import free_bytes

_CREATE_LIMIT_S = 600.0

Value = Any
Feeds = dict[str, Value]


class RunFailure(Exception):
    """The model could not be loaded or run. `creating` tells the two apart."""

    def __init__(self, message: str, *, creating: bool = False) -> None:
        super().__init__(message)
        self.creating = creating


class MemoryShort(RunFailure):
    """The run needs more memory than is free."""


@dataclass(frozen=True)
class ModelRun:
    """What to run. `engine` is "ort" or "reference" (onnx.reference); the rest is for ORT. `heavy`: it takes much
    memory (see `memory`), and where it runs in a process of its own it may take no more than is free."""

    path: str
    engine: str = "ort"
    optimize: bool = False
    threads: int | None = None
    plugin: bool = False
    prepacking: bool = True
    heavy: bool = False


class Runner(Protocol):
    """A loaded model. `signature` is ([(name, type)...], [(name, type)...]) of inputs and outputs."""

    signature: tuple[list[tuple[str, str]], list[tuple[str, str]]]

    def run(self, feeds: Feeds, limit: float | None = None) -> list[Value]:
        """Outputs in the model's order. Raises RunFailure."""
        ...

    def close(self) -> None: ...


def open_runner(what: ModelRun, *, isolate: bool) -> Runner:
    """Raises RunFailure (creating=True) with the engine's message."""
    if isolate:
        return _Child(what)
    return _Reference(what) if what.engine == "reference" else _Ort(what)


class _Ort:
    def __init__(self, what: ModelRun) -> None:
        import onnxruntime as ort

        ort.set_default_logger_severity(4)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.inter_op_num_threads = 1
        if what.threads is not None:
            options.intra_op_num_threads = what.threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if what.heavy:  # the arena grows in powers of two, and memory is given back to the system only without it
            options.enable_cpu_mem_arena = False
        if not what.prepacking:
            options.add_session_config_entry("session.disable_prepacking", "1")
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if what.optimize else level.ORT_DISABLE_ALL
        options.use_deterministic_compute = True
        providers = ["CPUExecutionProvider"]
        if what.plugin:
            # By name: the plugin is optional for verify, which also compares plain ONNX files.
            importlib.import_module("tilegraph.runtime").register()
            providers.insert(0, EP_NAME)
        try:
            self._session = ort.InferenceSession(what.path, options, providers=providers)
        except Exception as error:
            raise RunFailure(_message(error), creating=True) from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self.signature = ([(i.name, i.type) for i in inputs], [(o.name, o.type) for o in outputs])
        numpy_lacks = ("bfloat16", "float8", "float4")
        self._raw = any(any(n in t for n in numpy_lacks) for _, t in (*self.signature[0], *self.signature[1]))

    def run(self, feeds: Feeds, limit: float | None = None) -> list[Value]:
        known = {name for name, _ in self.signature[0]} | {i.name for i in self._session.get_overridable_initializers()}
        feeds = {k: v for k, v in feeds.items() if k in known}
        try:
            if not self._raw:
                return list(self._session.run(None, feeds))
            import onnxruntime as ort

            given = {k: _to_ort(ort, v) for k, v in feeds.items()}
            names = [name for name, _ in self.signature[1]]
            return [_from_ort(v) for v in self._session.run_with_ort_values(names, given)]
        except RunFailure:
            raise
        except Exception as error:
            raise RunFailure(_message(error)) from error

    def close(self) -> None:
        del self._session


def _to_ort(ort: Any, array: Value) -> Any:
    if not isinstance(array, np.ndarray) or _native(array.dtype):
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    import onnx_ir as ir  # half a second, for dtypes that numpy lacks

    dtype = ir.DataType.from_numpy(array.dtype)
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(dtype))


def _native(dtype: np.dtype[Any]) -> bool:
    """Whether ORT's Python bindings convert this dtype themselves."""
    return dtype.kind in "biufcOSU" and dtype.name in (*np.sctypeDict, "object", "str", "bytes")


def _from_ort(value: Any) -> Value:
    if not value.is_tensor():
        return [np.asarray(v) for v in value.to_numpy()] if hasattr(value, "to_numpy") else value.numpy()
    import onnx_ir as ir

    dtype = np.dtype(ir.DataType(value.element_type()).numpy())
    if _native(dtype):
        return value.numpy()
    shape = tuple(value.shape())
    size = int(np.prod(shape)) * dtype.itemsize
    # OrtValue.numpy() has no bfloat16 or float8: read the bytes where they lie.
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, dtype).reshape(shape)


class _Reference:
    """onnx.reference with faster convolutions and pools (the same sums, in numpy)."""

    def __init__(self, what: ModelRun) -> None:
        try:
            import onnx
            from onnx.reference import ReferenceEvaluator

            from tilegraph.verify.numpy_ops import OPS

            self._evaluator = ReferenceEvaluator(onnx.load(what.path), new_ops=list(OPS))
        except Exception as error:
            raise RunFailure(_message(error), creating=True) from error
        self.signature = ([(n, "") for n in self._evaluator.input_names],
                          [(n, "") for n in self._evaluator.output_names])

    def run(self, feeds: Feeds, limit: float | None = None) -> list[Value]:
        try:
            with np.errstate(all="ignore"):
                return list(self._evaluator.run(None, feeds))
        except Exception as error:
            raise RunFailure(_message(error)) from error

    def close(self) -> None:
        del self._evaluator


def _message(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # ORT's messages start with "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ".
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ", r"\1: ", lines[0])[:400]


# -- the child process ------------------------------------------------------------------------------------------
def send(stream: IO[bytes], item: object) -> None:
    """One length-prefixed pickle. Both ends are this program."""
    data = pickle.dumps(item, protocol=5)
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


class _Child:
    """A model in another process, which is started again when a run has killed it."""

    def __init__(self, what: ModelRun) -> None:
        self._what = what
        self._start()

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parent.parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen([sys.executable, "-m", "tilegraph.verify.worker"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        limit = free_bytes() if self._what.heavy else None
        self.signature = self._ask((self._what, limit), _CREATE_LIMIT_S, creating=True)

    def run(self, feeds: Feeds, limit: float | None = None) -> list[Value]:
        if self._process.poll() is not None:
            self._start()
        outputs: list[Value] = self._ask(feeds, limit, creating=False)
        return outputs

    def _ask(self, item: object, limit: float | None, *, creating: bool) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process.stdin, item)
            ready, _, _ = select.select([process.stdout], [], [], limit)
            if not ready:
                self.close()
                raise RunFailure(f"took longer than {limit:.0f} s", creating=creating)
            kind, answer = receive(process.stdout)
        except (EOFError, BrokenPipeError, OSError):
            code = process.wait()
            self.close()
            why = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            if code == -signal.SIGKILL and self._what.heavy:
                raise MemoryShort(f"the process that ran it {why}, as the system does when memory runs out",
                                  creating=creating) from None
            raise RunFailure(f"the process that ran it {why}", creating=creating) from None
        if kind == "unusable":
            self.close()
            raise InputError(answer)
        if kind == "memory":
            raise MemoryShort(answer, creating=creating)
        if kind == "error":
            raise RunFailure(answer, creating=creating)
        return answer

    def close(self) -> None:
        process = self._process
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
