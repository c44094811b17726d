"""Serving: the plugin execution provider (C++, runtime/src) and the few lines of Python around it.

    import onnxruntime, tilegraph.runtime
    tilegraph.runtime.register()
    session = onnxruntime.InferenceSession("model.tilegraph/model.onnx",
                                           providers=["TileGraphExecutionProvider", "CPUExecutionProvider"])

Importing this module needs neither ONNX Runtime nor the built library; calling its functions does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilegraph.errors import EnvironmentProblem, UsageError
from tilegraph.spec.artifact import EP_NAME, MANIFEST_FILE, MODEL_FILE
from tilegraph.spec.digest import check_sha256

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

__all__ = ["EP_NAME", "LIBRARY_FILE", "ep_library_path", "register", "session"]

LIBRARY_FILE = "libtilegraph_ep.so"
LIBRARY_VARIABLE = "TILEGRAPH_EP_LIBRARY"  # another build of the library, such as the sanitizers'
MINIMUM_ONNXRUNTIME = (1, 25)  # the first whose providers=[...] knows plugin providers

_lock = threading.Lock()
_registered: Path | None = None


def ep_library_path() -> Path:
    """The plugin library, for `register_execution_provider_library` of any language's ONNX Runtime.

    The environment variable TILEGRAPH_EP_LIBRARY names another one. Raises `EnvironmentProblem` if it is not built.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    # A checkout's own build (make ep) first: with an editable install the resource may be an older one.
    beside = Path(__file__).with_name(LIBRARY_FILE)
    installed = Path(str(resources.files("tilegraph.runtime").joinpath(LIBRARY_FILE)))
    path = Path(named) if named else beside if beside.is_file() else installed
    if path.is_file():
        return path.absolute()
    if named:
        raise EnvironmentProblem(f"{LIBRARY_VARIABLE} names {named}, which is not a file; unset it or correct it")
    raise EnvironmentProblem(f"the execution provider {path} is not built; run `make ep` in the checkout (an installed "
                             "package has it: reinstall tilegraph on Linux)")


def register() -> None:
    """Makes the execution provider known to ONNX Runtime in this process. Any number of calls, from any thread.

    Raises `EnvironmentProblem` if the library is not built, or ONNX Runtime is missing or older than 1.25.
    """
    global _registered
    with _lock:
        if _registered is not None:
            return
        ort = _onnxruntime()
        path = ep_library_path()
        if not any(device.ep_name == EP_NAME for device in ort.get_ep_devices()):
            try:
                ort.register_execution_provider_library(EP_NAME, str(path))
            except Exception as error:  # pybind's exception classes have no common base
                raise EnvironmentProblem(f"ONNX Runtime {ort.__version__} cannot load {path}: {error}") from error
        _registered = path


def session(model_path: str | os.PathLike[str], *, threads: int | None = None, options: Mapping[str, Any] | None = None,
            sess_options: SessionOptions | None = None) -> InferenceSession:
    """An ONNX Runtime session of `model_path` on our provider, with the CPU's for the rest of the graph.

    `model_path`: a model file, or a folder that tilegraph wrote. `threads`: ONNX Runtime's intra-op threads, which are
    set in `sess_options` where both are given. `options`: the provider's own (`max_tasks`, `loader`, `expect_sha256`;
    docs/serving.md). `expect_sha256` is compared here too, before anything is loaded: InputError if it differs.
    Raises `UsageError` for a bad argument, `EnvironmentProblem` as `register` does, and ONNX Runtime's exceptions.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}: it must be at least 1")
    register()  # has checked the version
    import onnxruntime as ort

    if options and "expect_sha256" in options:
        # A folder of which nothing was compiled never asks the provider.
        path = Path(model_path)
        check_sha256(path.parent if path.name == MODEL_FILE and (path.parent / MANIFEST_FILE).exists() else path,
                     str(options["expect_sha256"]))
    file = os.fspath(model_path)  # pathlib takes 40 µs of a session's 3.5 ms where nothing has used it before
    if os.path.isdir(file):
        file = os.path.join(file, MODEL_FILE)
    settings = sess_options if sess_options is not None else ort.SessionOptions()
    chosen = {key: str(value) for key, value in (options or {}).items()}
    if threads is not None:
        settings.intra_op_num_threads = threads
        # The provider cannot ask for the thread count: one thread gains nothing from splitting.
        chosen.setdefault("max_tasks", "1" if threads == 1 else str(min(4 * threads, 4096)))
    providers = [(EP_NAME, chosen), "CPUExecutionProvider"]
    created: InferenceSession = ort.InferenceSession(file, settings, providers=providers)
    return created


def _onnxruntime() -> Any:
    """The onnxruntime module, checked for its version."""
    try:
        import onnxruntime
    except ImportError as error:
        raise EnvironmentProblem("onnxruntime is not installed; install onnxruntime>=1.25") from error
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if version < MINIMUM_ONNXRUNTIME:
        wanted = ".".join(map(str, MINIMUM_ONNXRUNTIME))
        raise EnvironmentProblem(f"onnxruntime {onnxruntime.__version__} is too old for plugin providers; install "
                                 f"onnxruntime>={wanted}")
    return onnxruntime
