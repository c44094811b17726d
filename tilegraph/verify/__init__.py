"""Whether an optimized model gives the same answers as its original; see docs/verify.md."""

from tilegraph.verify.api import verify
from tilegraph.verify.inputs import InputMaker, accepted_inputs, load_for_analysis, make_inputs
from tilegraph.verify.result import OutputResult, VerifyResult

__all__ = ["InputMaker", "OutputResult", "VerifyResult", "accepted_inputs", "load_for_analysis", "make_inputs",
           "verify"]
