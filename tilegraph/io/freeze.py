"""Symbolic extents that the caller knows: `--dim batch=1`, `--dim total=past+seq`."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from tilegraph.errors import UsageError
from tilegraph.io.names import substitute_dims
from tilegraph.spec.dims import Dim
from tilegraph.spec.given import GivenDims, resolve


def input_dims(model: ir.Model) -> dict[str, str]:
    """The symbols of the graph inputs, in order, each with the place where it first occurs, such as "x, axis 0"."""
    found: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int) and dim.value is not None:
                for symbol in sorted(Dim.of(str(dim.value)).symbols):
                    found.setdefault(symbol, f"{value.name}, axis {axis}")
    return found


def freeze_dims(model: ir.Model, dims: GivenDims, aliases: Mapping[str, str] | None = None) -> bool:
    """Replaces the symbols named in `dims` by their integers or expressions everywhere in the graph, in place.

    `aliases` maps further accepted spellings to symbols (what the exporter wrote -> the model's name now).
    Returns whether the model changed. Raises UsageError for an unknown name and for what `resolve` refuses.
    """
    known = input_dims(model)
    given: dict[str, int | str] = {}
    for spelled, size in dims.items():
        name = (aliases or {}).get(spelled, spelled)
        if name not in known:
            listing = ", ".join(f"{n} ({where})" for n, where in known.items())
            raise UsageError(f"the model has no dim '{spelled}'; it has " + (listing or "no symbolic dims"))
        if given.setdefault(name, size) != size:
            raise UsageError(f"dim '{name}' is given twice, as {given[name]} and {size}")
    binding = resolve(given, known)
    return substitute_dims(model, binding) if binding else False
