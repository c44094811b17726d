"""tilegraph: a graph-level optimizer for ONNX models that proves that the answers are the same.

The public API; everything is imported on first use.

    optimize(model, target="cpu", ...) -> OptimizedModel      .save(folder), .session()
    verify(original, optimized, ...) -> VerifyResult          .same, .outputs
    bench(models, ...) -> BenchResult
    explain(model_or_folder, ...) -> Explanation
    register(), ep_library_path(), EP_NAME                    serving through ONNX Runtime; also runtime.session(folder)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["EP_NAME", "OptimizedModel", "TilegraphError", "__version__", "bench", "ep_library_path", "explain",
           "optimize", "register", "verify"]

if TYPE_CHECKING:
    from tilegraph.bench import bench as bench
    from tilegraph.compiler import OptimizedModel as OptimizedModel
    from tilegraph.compiler import optimize as optimize
    from tilegraph.errors import TilegraphError as TilegraphError
    from tilegraph.explain import explain as explain
    from tilegraph.runtime import ep_library_path as ep_library_path
    from tilegraph.runtime import register as register
    from tilegraph.spec.artifact import EP_NAME as EP_NAME
    from tilegraph.verify import verify as verify

_HOME = {
    "EP_NAME": "tilegraph.spec.artifact", "OptimizedModel": "tilegraph.compiler", "optimize": "tilegraph.compiler",
    "TilegraphError": "tilegraph.errors", "register": "tilegraph.runtime", "ep_library_path": "tilegraph.runtime",
}
# Functions that share their name with the module that defines them.
_CALLABLE_MODULES = ("bench", "explain", "verify")


class _CallableModule(ModuleType):
    """`tilegraph.verify` is a package; calling it calls its function `verify`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds a submodule here once it has run, whoever imported it.
        if name in _CALLABLE_MODULES and type(value) is ModuleType:
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _CALLABLE_MODULES or name == "runtime":  # `tilegraph.runtime.session` needs no import of its own
        return importlib.import_module(f"tilegraph.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tilegraph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
