"""Freezing symbolic extents: `--dim batch=1`."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from tilegraph.errors import UsageError
from tilegraph.io.names import substitute_dims
from tilegraph.spec.dims import Dim


def input_dims(model: ir.Model) -> dict[str, str]:
    """The symbols of the graph inputs, in order, each with the place where it first occurs, such as "x, axis 0"."""
    found: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int) and dim.value is not None:
                for symbol in sorted(Dim.of(str(dim.value)).symbols):
                    found.setdefault(symbol, f"{value.name}, axis {axis}")
    return found


def freeze_dims(model: ir.Model, dims: Mapping[str, int], aliases: Mapping[str, str] | None = None) -> bool:
    """Replaces the symbols named in `dims` by their integers everywhere in the graph, in place.

    `aliases` maps further accepted spellings to symbols (what the exporter wrote -> the model's name now).
    Returns whether the model changed. Raises UsageError for an unknown name, a value that is not an integer, or a
    negative one.
    """
    known = input_dims(model)
    binding: dict[str, int] = {}
    for given, size in dims.items():
        name = (aliases or {}).get(given, given)
        if isinstance(size, bool) or not isinstance(size, int):
            raise UsageError(f"dim '{given}' must be an integer, not {size!r}")
        if size < 0:
            raise UsageError(f"dim '{given}' must not be negative, got {size}")
        if name not in known:
            listing = ", ".join(f"{n} ({where})" for n, where in known.items())
            raise UsageError(f"the model has no dim '{given}'; it has " + (listing or "no symbolic dims"))
        if binding.setdefault(name, size) != size:
            raise UsageError(f"dim '{name}' is given twice, as {binding[name]} and {size}")
    return substitute_dims(model, binding) if binding else False
