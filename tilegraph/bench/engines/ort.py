"""ONNX Runtime: the CPU provider, or the plugin for what we optimized."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegraph.bench.engines import Array, chosen, contiguous

_LEVELS = {"all": "ORT_ENABLE_ALL", "layout": "ORT_ENABLE_LAYOUT", "extended": "ORT_ENABLE_EXTENDED",
           "basic": "ORT_ENABLE_BASIC", "disable": "ORT_DISABLE_ALL"}


def load(peer: dict[str, Any]) -> None:
    import onnxruntime  # noqa: F401

    from tilegraph.spec.artifact import EP_NAME

    if peer["provider"] == EP_NAME:
        from tilegraph.runtime import register

        register()


def create(peer: dict[str, Any], threads: int) -> Session:
    """Raises what ONNX Runtime raises."""
    return Session(_session(peer, threads))


class Session:
    """A session with inputs and outputs bound once, where the types allow it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._binding: Any = None
        self._feeds: dict[str, Any] = {}

    def bind(self, feeds: dict[str, Array]) -> str:
        wanted = {v.name: v.type for v in self._session.get_inputs()}
        values = {name: _value(array, wanted[name]) for name, array in chosen(list(wanted), feeds).items()}
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

    def outputs(self) -> list[Array]:
        if self._binding is not None:
            return [np.asarray(value.numpy()) for value in self._binding.get_outputs()]
        return [np.asarray(value) for value in self._session.run(None, self._feeds)]


def _value(array: Array, kind: str) -> Any:
    import onnxruntime as ort

    if kind == "tensor(string)":
        return None
    if kind == "tensor(bfloat16)" or kind.startswith("tensor(float8"):
        from onnx import TensorProto

        name = kind[len("tensor("):-1].upper()
        raw = np.ascontiguousarray(array).view(np.uint16 if kind == "tensor(bfloat16)" else np.uint8)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, TensorProto.DataType.Value(name))
    return ort.OrtValue.ortvalue_from_numpy(contiguous(array))


def _session(peer: dict[str, Any], threads: int) -> Any:
    import onnxruntime as ort

    from tilegraph.spec.artifact import EP_NAME

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[peer["optimization"]])
    options.log_severity_level = 3
    for key, value in peer["options"].items():
        options.add_session_config_entry(key, value)
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
