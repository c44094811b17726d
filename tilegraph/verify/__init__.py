"""Whether an optimized model gives the same answers as its original; see docs/verify.md.

Everything is imported on first use: the child processes that run models need `run` alone, which takes 20 ms where the
whole takes half a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilegraph.verify.api import verify
    from tilegraph.verify.inputs import InputMaker, accepted_inputs, load_for_analysis, make_inputs
    from tilegraph.verify.result import OutputResult, VerifyResult

__all__ = ["InputMaker", "OutputResult", "VerifyResult", "accepted_inputs", "load_for_analysis", "make_inputs",
           "verify"]

_HOME = {"verify": "api", "OutputResult": "result", "VerifyResult": "result"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'inputs')}"), name)
