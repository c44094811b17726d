"""Passes: the base class, the pipeline, instruments and invariants."""

from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.passes.pipeline import Instrument, Pipeline

__all__ = ["Instrument", "Pass", "PassContext", "PassResult", "Pipeline"]
