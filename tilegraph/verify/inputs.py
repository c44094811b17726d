"""Seeded random inputs that a model can do something sensible with.

`make_inputs` is deterministic in (model, seed, sample): verify and bench use it. Values follow the roles of
`roles.find_role`, sizes those of `sizes.Sizes`.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from tilegraph.errors import InputError
from tilegraph.spec.given import GivenDims
from tilegraph.verify.roles import Kind, Role, find_role
from tilegraph.verify.sizes import Sizes
from tilegraph.verify.source import read_model

Array = np.ndarray[Any, Any]


def make_inputs(model_path: str | Path, *, seed: int = 0, sample: int = 0,
                dims: GivenDims | None = None) -> dict[str, Array]:
    """Arrays for every input of an .onnx file, by name. Sample 0 has batch 1, later samples other sizes.

    Raises InputError for an input that cannot be invented (a sequence, an optional, no rank).
    """
    maker = InputMaker(load_for_analysis(model_path), dims)
    return maker.make(seed, sample, maker.bindings(seed, sample)[0])


def accepted_inputs(model_path: str | Path, run: Callable[[dict[str, Array]], object], *, seed: int = 0,
                    sample: int = 0, dims: GivenDims | None = None) -> dict[str, Array]:
    """As `make_inputs`, with the first sizes on which `run` raises nothing; InputError with the first refusal if it
    always does."""
    maker = InputMaker(load_for_analysis(model_path), dims)
    first: Exception | None = None
    for _, binding in maker.attempts(seed, sample):
        feeds = maker.make(seed, sample, binding)
        try:
            run(feeds)
        except Exception as error:
            first = first or error
            continue
        return feeds
    why = (str(first).strip().splitlines() or [type(first).__name__])[0][:200]
    raise InputError(f"{model_path}: runs on none of the sizes tried ({why}): fix them with --dim or give --inputs") \
        from first


def nudged(feeds: Mapping[str, Any], kinds: tuple[type, ...] = (np.float16, np.float32, np.float64),
           seed: int = 0) -> dict[str, Any]:
    """The same inputs with every float of `kinds` moved to its neighbour, up or down by chance: what a last bit can
    do."""
    rng = np.random.default_rng(seed)
    moved: dict[str, Any] = {}
    for name, value in feeds.items():
        if isinstance(value, np.ndarray) and value.dtype in kinds:
            ends = np.where(rng.integers(0, 2, value.shape), np.inf, -np.inf).astype(value.dtype)
            value = np.where(np.isfinite(value) & (value != 0), np.nextafter(value, ends), value)
        moved[name] = value
    return moved


def shrunk(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Inputs of the same kind: each float smaller by up to 1 %, which keeps it in the range of most operators. Integers
    (also in floats: masks, steps) stay."""
    rng = np.random.default_rng(seed)
    moved: dict[str, Any] = {}
    for name, value in feeds.items():
        if isinstance(value, np.ndarray) and value.dtype in (np.float16, np.float32, np.float64):
            factor = np.asarray(1 - rng.random(value.shape) * 0.01, value.dtype)
            value = np.where(np.isfinite(value) & (value != np.rint(value)), value * factor, value)
        moved[name] = value
    return moved


def load_for_analysis(model_path: str | Path) -> ir.Model:
    """A private copy of the model with its functions inlined and shapes inferred. Weights stay memory-mapped."""
    model = read_model(model_path)
    log = logging.getLogger(ShapeInferencePass.__module__)
    level = log.level
    log.setLevel(logging.ERROR)  # onnx_ir warns with a whole traceback where shapes cannot be inferred
    try:
        if model.functions:
            InlinePass()(model)
        model = ShapeInferencePass()(model).model
    except Exception:
        # Shapes only sharpen the ranges of indices; a model that they fail on is still worth a try.
        return model
    finally:
        log.setLevel(level)
    return model


class InputMaker:
    """Analyses a model once and makes any number of samples."""

    def __init__(self, model: ir.Model, dims: GivenDims | None = None) -> None:
        self.model = model
        self.inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
        for value in self.inputs:
            _check_makeable(value)
        self.sizes = Sizes(self.inputs, dims)
        self.roles: dict[str, Role] = {v.name or "": find_role(v) for v in self.inputs}

    def bindings(self, seed: int, sample: int) -> list[dict[str, int]]:
        """Candidate sizes of the symbolic dims, best first; empty bindings when there are none."""
        return self.sizes.bindings(seed, sample)

    def attempts(self, seed: int, sample: int, worked: int | None = None) -> Iterator[tuple[int, dict[str, int]]]:
        """(place, binding) without repetition: the two best, then the place that `worked` for an earlier sample, then
        the others."""
        every = self.bindings(seed, sample)
        places = [0, 1, *([worked] if worked is not None else []), *range(2, len(every))]
        tried: list[dict[str, int]] = []
        for place in places:
            if every[place] not in tried:
                tried.append(every[place])
                yield place, every[place]

    def make(self, seed: int, sample: int, binding: Mapping[str, int]) -> dict[str, Array]:
        shapes = {v.name or "": self.sizes.shape(v.name or "", binding) for v in self.inputs}
        made: dict[str, Array] = {}
        for value in self.inputs:
            name = value.name or ""
            rng = np.random.default_rng([seed, sample, zlib.crc32(name.encode())])
            assert value.dtype is not None
            made[name] = _values(self.roles[name], value.dtype, shapes[name], rng, sample, binding, shapes)
        return made


def _check_makeable(value: ir.Value) -> None:
    if value.type is None or value.dtype is None:
        raise InputError(f"input {value.name!r} has no type: the model is not valid")
    if not isinstance(value.type, ir.TensorType):
        kind = {"SequenceType": "a sequence", "OptionalType": "an optional", "SparseTensorType": "a sparse tensor"}
        what = kind.get(type(value.type).__name__, "not a tensor")
        raise InputError(f"input {value.name!r} is {what}, which cannot be invented: give its value with --inputs")
    if value.dtype == ir.DataType.STRING:
        return
    if value.dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) or value.dtype.bitwidth < 8:
        raise InputError(f"input {value.name!r} is {value.dtype.name.lower()}, which cannot be invented: "
                         "give its value with --inputs")


def _values(role: Role, dtype: ir.DataType, shape: tuple[int, ...], rng: np.random.Generator, sample: int,
            binding: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> Array:
    if dtype == ir.DataType.STRING:
        words = np.array(["", "a", "tile", "graph", "Zürich", "the quick brown fox", "42"], dtype=object)
        return np.asarray(words[rng.integers(0, len(words), shape)], dtype=object).reshape(shape)
    numpy_dtype = np.dtype(dtype.numpy())
    kind = role.kind
    if kind in (Kind.MASK, Kind.PADDING_MASK, Kind.ADDITIVE_MASK):
        return _mask(kind, dtype, numpy_dtype, shape, rng, sample)
    if kind is Kind.TRAINING_FLAG:
        return np.zeros(shape, numpy_dtype)
    if kind is Kind.CONDITION:
        single = int(np.prod(shape)) == 1
        return (np.full(shape, sample % 2 == 0) if single else rng.integers(0, 2, shape)).astype(numpy_dtype)
    if kind is Kind.SHAPE:
        return _shape_operand(role.detail, shape, rng).astype(numpy_dtype)
    if dtype.is_floating_point():
        return _floats(kind, shape, rng).astype(numpy_dtype)
    return np.asarray(_integers(role, dtype, shape, rng, sample, binding, shapes)).astype(numpy_dtype)


def _floats(kind: Kind, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if kind is Kind.IMAGE:
        return rng.random(shape)
    if kind is Kind.POSITIVE:
        return np.asarray(0.1 + np.abs(rng.standard_normal(shape)))
    if kind is Kind.RATE:
        return np.asarray(rng.uniform(1e-4, 1e-2, shape))
    return np.asarray(rng.standard_normal(shape))


def _integers(role: Role, dtype: ir.DataType, shape: tuple[int, ...], rng: np.random.Generator, sample: int,
              binding: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> Array:
    kind = role.kind
    largest = (1 << (dtype.bitwidth - (1 if dtype.is_signed() else 0))) - 1
    if kind in (Kind.INDEX, Kind.POSITION):
        rows = [r.evaluate(binding) for r in role.rows if r.symbols <= binding.keys()]
        high = max(role.shift + 1, min([*rows, largest])) if rows else role.shift + 2
        if kind is Kind.INDEX:
            return rng.integers(role.shift, high, shape)
        steps = np.arange(shape[-1] if shape else 1) % max(1, high - role.shift) + role.shift
        return np.broadcast_to(steps if shape else steps[0], shape)
    if kind is Kind.KEYS and all(r.symbols <= binding.keys() for r in role.rows):
        full = role.rows[0].evaluate(binding) - role.shift
        short = rng.integers(0, 2, shape) if sample % 2 and shape and shape[0] > 1 else 0  # rows of unequal length
        return np.asarray(np.maximum(np.full(shape, full) - short, 0))
    if kind in (Kind.LENGTH, Kind.KEYS):
        longest = [s[1] for n, s in shapes.items() if len(s) >= 2 and s[1] > 0]
        return rng.integers(1, max(2, min([*longest, largest], default=2) + 1), shape)
    if kind is Kind.CHOICE:
        usable = [c for c in role.choices if c == int(c) and (0 <= c <= largest)]
        return np.full(shape, usable[sample % len(usable)] if usable else 1)
    if kind is Kind.TRIP_COUNT:
        return rng.integers(2, 5, shape)
    if dtype.bitwidth == 8:
        info = np.iinfo(dtype.numpy())
        return rng.integers(info.min, int(info.max) + 1, shape)
    return rng.integers(1, 10, shape)


def _mask(kind: Kind, dtype: ir.DataType, numpy_dtype: np.dtype[Any], shape: tuple[int, ...],
          rng: np.random.Generator, sample: int) -> Array:
    """Mostly kept, tails dropped: every row keeps at least its first key, and row 0 keeps all of them. A mask of one
    row drops nothing in every other sample."""
    width = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1])) if shape else 1
    # All heads and queries of one batch entry share a tail, as they do in real masks.
    groups = max(1, shape[0] if len(shape) >= 2 else 1)
    lengths = rng.integers(max(1, (width + 1) // 2), width + 1, groups) if width else np.zeros(groups, np.int64)
    if len(shape) < 2 or groups > 1 or sample % 2:
        lengths[0] = width
    per_row = np.repeat(lengths, max(1, rows // groups))[:rows]
    keep = (np.arange(width)[None, :] < per_row[:, None]).reshape(shape)
    if kind is Kind.ADDITIVE_MASK:
        low = -1e4 if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else -1e9
        return np.where(keep, 0.0, low).astype(numpy_dtype)
    return (~keep if kind is Kind.PADDING_MASK else keep).astype(numpy_dtype)


def _shape_operand(detail: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Small values that the op accepts whatever the data: one axis for Reshape, ones for Expand, a few for Range."""
    op, _, operand = detail.partition(":")
    if op == "Reshape":
        target = np.ones(shape, np.int64)
        target.reshape(-1)[:1] = -1
        return target
    if op == "Range":
        return np.full(shape, {"0": 0, "1": int(rng.integers(3, 9)), "2": 1}[operand])
    if op == "Slice":
        return np.full(shape, {"1": 0, "2": int(rng.integers(1, 4)), "3": 0, "4": 1}[operand])
    if op in ("ConstantOfShape", "Tile", "SplitToSequence", "HannWindow", "HammingWindow", "BlackmanWindow"):
        return rng.integers(1, 4, shape)
    if op == "OneHot":
        return np.full(shape, 8)
    if op in ("Resize", "Upsample"):
        return np.full(shape, 8 if operand == "3" else 1)
    if op in ("Pad", "Trilu", "CumSum", "Squeeze", "Unsqueeze", "SequenceAt") or op.startswith("Reduce"):
        return np.zeros(shape, np.int64)
    return np.ones(shape, np.int64)
