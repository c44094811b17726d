"""Sizes for the symbolic dims of a model's inputs.

One name has one value in all inputs. A sample has several candidate bindings: the first is the preferred one; the
later ones are for models that refuse it (a stride that must divide the image, a mask as long as past plus present).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tilegraph.errors import InputError, UsageError
from tilegraph.spec.dims import Dim
from tilegraph.spec.given import GivenDims, resolve

# (batch, sequence, past, spatial) of the first samples; later samples draw theirs.
_SAMPLES = ((1, 16, 8, 64), (2, 24, 5, 96), (3, 13, 7, 67))
# What to try when a sample's own sizes are refused, with its batch and then with batch 1: sequence, past, spatial,
# and whether total is past + sequence.
_RETRIES: tuple[tuple[int, int, int, bool], ...] = (
    (16, 16, 64, False), (32, 8, 128, True), (1, 8, 96, True), (128, 16, 224, False), (512, 8, 320, False),
    (576, 8, 256, False), (1, 1, 32, False), (16, 0, 224, True), (1, 0, 299, True), (2048, 8, 640, False),
)


@dataclass
class Axis:
    """A symbolic or unknown extent: where it occurs, and what kind of thing it counts."""

    key: str
    places: list[tuple[str, int, int]] = field(default_factory=list)  # input, axis, rank
    kind: str = "sequence"  # batch, sequence, past, total, spatial
    pinned: int | None = None
    step: int = 1  # the extent is so many times the size, where the caller says so: height=32*h


def _is_state(value: ir.Value, at: int) -> bool:
    """Whether the unnamed axis is the batch of a recurrent state, [layers, batch, features]."""
    shape = value.shape
    if at != 1 or shape is None or len(shape) != 3 or not isinstance(shape[0], int) or not 0 < shape[0] <= 16:
        return False
    return bool(re.search(r"state|hidden|^h|^c", (value.name or "").lower()))


def _split(name: str) -> list[str]:
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().replace("-", "_").split("_")


def _kind(axis: Axis, spatial: bool) -> str:
    if axis.key == "#batch":
        return "batch"
    words = set(_split(axis.key)) if "#" not in axis.key else set()
    text = axis.key.lower() if "#" not in axis.key else ""
    if words & {"batch", "bs", "b", "n"} or "batch" in text:
        return "batch"
    if "total" in words or ("past" in words and words & {"plus", "present", "and"}):
        return "total"
    if words & {"past", "kv", "cache"}:
        return "past"
    if words & {"height", "width", "h", "w"} or spatial:
        return "spatial"
    if words & {"seq", "sequence", "len", "length", "time", "token", "tokens", "frames"}:
        return "sequence"
    if all(at == 0 for _, at, _ in axis.places) and any(rank >= 2 for _, _, rank in axis.places):
        return "batch"
    return "sequence"


class Sizes:
    """The symbolic dims of `inputs` and how to bind them. `dims` fixes some by name, or by `input[axis]`, or says what
    a name follows from."""

    def __init__(self, inputs: list[ir.Value], dims: GivenDims | None = None) -> None:
        self.axes: dict[str, Axis] = {}
        self._shapes: dict[str, list[Dim]] = {}
        fixed = {k: v for k, v in (dims or {}).items() if not isinstance(v, str)}
        said = {k: v for k, v in (dims or {}).items() if isinstance(v, str)}
        known: set[str] = set()
        for value in inputs:
            self._add(value, fixed, known)
        unknown = sorted((set(fixed) - known | set(said)) - set(self.axes))
        if unknown:
            have = ", ".join(sorted(self.axes)) or "none"
            raise UsageError(f"--dim {unknown[0]}: no input has a symbolic dim of that name (there are: {have})")
        self._follow(resolve(said, self.axes))
        self._fixed = {k: v for k, v in fixed.items() if k in self.axes}
        for axis in self.axes.values():
            axis.kind = _kind(axis, any(_spatial(inputs, place) for place in axis.places))
            axis.pinned = next((p for place in axis.places if (p := _pinned(inputs, place)) is not None), None)

    def _add(self, value: ir.Value, fixed: dict[str, int], known: set[str]) -> None:
        name = value.name or ""
        if value.shape is None:
            raise InputError(f"input {name!r} has no shape, not even a rank: give an array for it with --inputs")
        shape: list[Dim] = []
        for at, raw in enumerate(value.shape):
            place = f"{name}[{at}]"
            known.add(place)
            if isinstance(raw, int) and raw >= 0:
                shape.append(Dim.of(raw))
                continue
            if place in fixed:
                shape.append(Dim.of(fixed[place]))
                continue
            text = None if isinstance(raw, int) else raw.value
            if text and re.search(r"\w", text):
                dim = Dim.of(text)
            else:  # no name, "?" or -1: an extent of its own, except that first axes are taken for one batch
                dim = Dim.symbol("#batch" if at == 0 or _is_state(value, at) else f"{name}#{at}")
            for symbol in dim.symbols:
                self.axes.setdefault(symbol, Axis(symbol)).places.append((name, at, len(value.shape)))
            shape.append(dim)
        self._shapes[name] = shape

    def _follow(self, said: Mapping[str, Dim]) -> None:
        """Puts what the caller says of some dims in their place; a new name is an axis of the same kind."""
        for name, dim in said.items():
            places = self.axes.pop(name).places
            for symbol in dim.symbols - self.axes.keys():
                self.axes[symbol] = Axis(name, places, step=dim.terms[-1][1])
        self._shapes = {k: [d.substitute(said) for d in shape] for k, shape in self._shapes.items()}

    def bindings(self, seed: int, sample: int) -> list[dict[str, int]]:
        """Candidate values for every symbol, best first. All samples have the same number; what works for one sample
        at a place is likely to work for another at the same place."""
        if sample < len(_SAMPLES):
            batch, sequence, past, spatial = _SAMPLES[sample]
        else:
            draw = np.random.default_rng([seed, sample])
            batch, sequence, past = int(draw.integers(1, 5)), int(draw.integers(2, 49)), int(draw.integers(1, 17))
            spatial = int(draw.integers(32, 129))
        found = [self._bind(batch, sequence, past, spatial, True), self._bind(batch, sequence, past, spatial, False)]
        for seq, kv, space, summed in _RETRIES:
            found += [self._bind(size, seq, kv, space, summed) for size in (batch, 1)]
        return found

    def _bind(self, batch: int, sequence: int, past: int, spatial: int, summed: bool) -> dict[str, int]:
        has_past = any(a.kind == "past" for a in self.axes.values())
        total = past + sequence if summed and has_past else sequence
        values = {"batch": batch, "sequence": sequence, "past": past, "spatial": spatial, "total": total}
        binding = {k: a.pinned if a.pinned is not None else max(values[a.kind] // a.step, 1)
                   for k, a in self.axes.items()}
        binding.update(self._fixed)
        return binding

    def shape(self, name: str, binding: Mapping[str, int]) -> tuple[int, ...]:
        """The concrete shape of input `name`."""
        return tuple(max(0, d.evaluate(binding)) for d in self._shapes[name])

    def describe(self, binding: Mapping[str, int]) -> str:
        """For notes: "batch=2, seq=24"."""
        return ", ".join(f"{_readable(k)}={v}" for k, v in binding.items()) or "the fixed sizes"


def _readable(key: str) -> str:
    if key == "#batch":
        return "axis 0"
    name, mark, axis = key.partition("#")
    return f"{name}[{axis}]" if mark else key


def _by_name(inputs: list[ir.Value], name: str) -> ir.Value:
    return next(v for v in inputs if v.name == name)


def _near_uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Uses of the value itself and of its casts and pointwise images (axes keep their places)."""
    found: list[tuple[ir.Node, int]] = []
    layer = [value]
    for _ in range(4):
        following: list[ir.Value] = []
        for current in layer:
            for use in current.uses():
                found.append((use.node, use.idx))
                if use.node.op_type in ("Cast", "Identity", "Mul", "Add", "Sub", "Div", "Relu", "Dropout"):
                    following += use.node.outputs[:1]
        layer = following[:32]
    return found


def _spatial(inputs: list[ir.Value], place: tuple[str, int, int]) -> bool:
    name, at, rank = place
    value = _by_name(inputs, name)
    if at < 2 or rank < 4 or value.dtype in (None, ir.DataType.STRING):
        return False
    if not (value.dtype.is_floating_point() or value.dtype.bitwidth == 8):
        return False
    return any(n.op_type in ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "MaxPool", "AveragePool", "Resize")
               for n, _ in _near_uses(value)) or rank == 4


def _pinned(inputs: list[ir.Value], place: tuple[str, int, int]) -> int | None:
    """The extent that a weight demands at this place: Conv channels, MatMul and Gemm depth, RNN features."""
    name, at, rank = place
    for node, index in _near_uses(_by_name(inputs, name)):
        if index != 0 or len(node.inputs) < 2 or node.inputs[1] is None or node.inputs[1].shape is None:
            continue
        weight = node.inputs[1].shape
        attr = node.attributes.get("group")
        extent: object = None
        if node.op_type == "Conv" and at == 1 and isinstance(weight[1], int):
            extent = weight[1] * (attr.as_int() if attr is not None else 1)
        elif node.op_type == "MatMul" and at == rank - 1 and len(weight) == 2:
            extent = weight[0]
        elif node.op_type == "Gemm" and at == 1 and not _flag(node, "transA"):
            extent = weight[1] if _flag(node, "transB") else weight[0]
        elif node.op_type in ("LSTM", "GRU", "RNN") and at == 2:
            extent = weight[2]
        elif node.op_type in ("LayerNormalization", "RMSNormalization") and at == rank - 1 and len(weight) == 1:
            extent = weight[0]
        if isinstance(extent, int):
            return extent
    return None


def _flag(node: ir.Node, name: str) -> bool:
    attr = node.attributes.get(name)
    return attr is not None and attr.as_int() != 0
