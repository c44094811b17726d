"""What a graph input is used for, found by walking the graph from it.

Random numbers are no test when the model reads them as indices, masks or shapes. `find_role` follows an input
through view-like nodes (Cast, Reshape, Unsqueeze, Slice, adding a constant, the bodies of If, Loop and Scan) to
the nodes that give it a meaning, and falls back on its name and dtype.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx_ir as ir

from tilegraph.spec.dims import Dim


class Kind(Enum):
    """The meanings that change which values make sense."""

    NUMBER = "number"  # nothing special
    POSITIVE = "positive"  # ends in Sqrt or Log
    IMAGE = "image"
    RATE = "rate"  # a learning rate and the like
    INDEX = "index"
    POSITION = "position"  # an index that increases along the last axis
    MASK = "mask"  # 1 keeps
    PADDING_MASK = "padding mask"  # 1 drops
    ADDITIVE_MASK = "additive mask"  # 0 keeps, a large negative number drops
    LENGTH = "length"
    KEYS = "number of keys"  # of a cache: past and new ones
    CHOICE = "choice"  # compared with constants
    CONDITION = "condition"
    TRIP_COUNT = "trip count"
    TRAINING_FLAG = "training flag"
    SHAPE = "shape"


@dataclass(frozen=True)
class Role:
    """`rows` are exclusive upper bounds of an index (before `shift` is added to it), or the KEYS of a full cache, of
    which the model wants `shift` less; `choices` the constants of a CHOICE; `detail` says which operand of which op a
    SHAPE is, such as "Reshape:1"."""

    kind: Kind
    rows: tuple[Dim, ...] = ()
    shift: int = 0
    choices: tuple[float, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class Use:
    """Operand `index` of `node` sees the input, after `shift` was added to it."""

    node: ir.Node
    index: int
    shift: int
    through: tuple[str, ...]


# op -> operands through which the values pass unchanged (perhaps moved, converted or partly dropped)
_PASS: dict[str, tuple[int, ...]] = {
    "Identity": (0,), "Cast": (0,), "CastLike": (0,), "Unsqueeze": (0,), "Squeeze": (0,), "Reshape": (0,),
    "Flatten": (0,), "Transpose": (0,), "Expand": (0,), "Slice": (0,), "Split": (0,), "Tile": (0,), "Clip": (0,),
    "Where": (1, 2), "Pad": (0,), "Dropout": (0,), "ReverseSequence": (0,), "Max": (), "Min": (), "Concat": (),
}
_SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4), "Resize": (1, 2, 3), "Upsample": (1,), "Pad": (1, 3), "OneHot": (1,), "TopK": (1,),
    "Split": (1,), "Unsqueeze": (1,), "Squeeze": (1,), "CumSum": (1,), "Trilu": (1,), "CenterCropPad": (1,),
    "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,), "ReduceMin": (1,), "ReduceProd": (1,),
    "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceSumSquare": (1,),
    "AffineGrid": (1,), "MaxUnpool": (2,), "Col2Im": (1, 2), "HannWindow": (0,), "HammingWindow": (0,),
    "BlackmanWindow": (0,), "EyeLike": (), "SplitToSequence": (1,), "SequenceAt": (1,),
}
_RNN = ("LSTM", "GRU", "RNN")
_MAX_USES = 512  # an input that fans out further keeps the roles found so far


def uses_of(value: ir.Value) -> Iterator[Use]:
    """Every operand that sees the values of `value`, nearest first; at most a few hundred."""
    queue: list[tuple[ir.Value, int, tuple[str, ...]]] = [(value, 0, ())]
    seen: set[int] = {id(value)}
    count = 0
    while queue and count < _MAX_USES:
        current, shift, through = queue.pop(0)
        for node, index in tuple((u.node, u.idx) for u in current.uses()):
            count += 1
            yield Use(node, index, shift, through)
            for following, added in _passes_to(node, index):
                if id(following) not in seen:
                    seen.add(id(following))
                    queue.append((following, shift + added, (*through, node.op_type)))


def _passes_to(node: ir.Node, index: int) -> list[tuple[ir.Value, int]]:
    if node.op_type in _PASS:
        operands = _PASS[node.op_type]
        if not operands or index in operands:
            outputs = node.outputs if node.op_type == "Split" else node.outputs[:1]
            return [(o, 0) for o in outputs]
        return []
    if node.op_type == "Gather" and index == 0:
        return [(node.outputs[0], 0)]
    if node.op_type in ("Add", "Sub") and len(node.inputs) == 2:
        other = constant(node.inputs[1 - index])
        if other is not None and other.size == 1 and not (node.op_type == "Sub" and index == 1):
            added = other.reshape(()).item()
            if isinstance(added, int | float) and np.isfinite(added) and added == int(added):
                return [(node.outputs[0], int(added) if node.op_type == "Add" else -int(added))]
        return []
    if node.op_type in ("Loop", "Scan"):
        body = node.attributes["body"].as_graph()
        # Loop: operands (trip count, condition, states...) and body (iteration, condition, states...) line up.
        if (node.op_type == "Scan" or index >= 2) and index < len(body.inputs):
            return [(body.inputs[index], 0)]
    return []


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer or Constant node of at most a few thousand elements, else None."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size > 4096 or tensor.dtype == ir.DataType.STRING:
        return None
    return np.asarray(tensor.numpy())


def _dims(value: ir.Value | None) -> list[Dim] | None:
    if value is None or value.shape is None:
        return None
    return [Dim.of(d) if isinstance(d, int) else Dim.of(d.value or "?") for d in value.shape]


def _rows(node: ir.Node, index: int) -> list[Dim] | None:
    """Exclusive upper bounds if operand `index` of `node` is read as an index: [] when unknown, None when it is not."""
    op, inputs = node.op_type, node.inputs
    if op in ("Gather", "GatherElements", "ScatterElements", "Scatter") and index == 1:
        shape = _dims(inputs[0])
        attr = node.attributes.get("axis")
        axis = attr.as_int() if attr is not None else 0
        return [] if not shape else [shape[axis]]
    if op in ("GatherND", "ScatterND") and index == 1:
        shape, last = _dims(inputs[0]), _dims(inputs[1])
        attr = node.attributes.get("batch_dims")
        skip = attr.as_int() if attr is not None else 0
        if not shape:
            return []
        width = last[-1].as_int() if last else None
        return shape[skip:skip + width] if width else shape[skip:]
    if op == "OneHot" and index == 0:
        depth = constant(inputs[1])
        return [] if depth is None else [Dim.of(int(depth.reshape(-1)[0]))]
    if op == "EmbedLayerNormalization" and index in (0, 1):
        table = _dims(inputs[2 + 2 * index])
        return [] if not table else [table[0]]
    if op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLossInternal") and index == 1:
        scores = _dims(inputs[0])
        return [] if not scores or len(scores) < 2 else [scores[1]]
    return None


def _keys(use: Use) -> Role | None:
    """GroupQueryAttention's seqlens_k, the last place of each row, and total_sequence_length: past and new keys."""
    if use.node.op_type != "GroupQueryAttention" or use.index not in (5, 6):
        return None
    new, past = _dims(use.node.inputs[0]), _dims(use.node.inputs[3])
    if new is None or len(new) != 3 or (use.node.inputs[3] is not None and (past is None or len(past) != 4)):
        return None
    total = new[1] + past[2] if past is not None else new[1]
    return Role(Kind.KEYS, (total,), (1 if use.index == 5 else 0) + use.shift)


def _named(name: str, *patterns: str) -> bool:
    return any(re.search(p, name.lower()) for p in patterns)


def find_role(value: ir.Value) -> Role:
    """The role of graph input `value`. Shapes should have been inferred before."""
    name = value.name or ""
    dtype = value.dtype
    integer = dtype is not None and dtype.is_integer()
    floating = dtype is not None and dtype.is_floating_point()
    rows: list[Dim] = []
    shifts: list[int] = [0]
    found: dict[Kind, Role] = {}
    choices: list[float] = []
    indexed = False
    for use in uses_of(value):
        node, op = use.node, use.node.op_type
        bounds = _rows(node, use.index)
        if bounds is not None:
            indexed = True
            # The shift must hold for every bound, so it is applied to each.
            rows += [b - use.shift for b in bounds if "?" not in b.symbols]
            shifts.append(use.shift)
        elif use.index in _SHAPE_OPERANDS.get(op, ()):
            found.setdefault(Kind.SHAPE, Role(Kind.SHAPE, detail=f"{op}:{use.index}"))
        elif op == "Loop" and use.index == 0:
            found.setdefault(Kind.TRIP_COUNT, Role(Kind.TRIP_COUNT))
        elif (op in ("If",) and use.index == 0) or (op == "Loop" and use.index == 1):
            found.setdefault(Kind.CONDITION, Role(Kind.CONDITION))
        elif (op in _RNN and use.index == 4) or (op == "ReverseSequence" and use.index == 1):
            found.setdefault(Kind.LENGTH, Role(Kind.LENGTH))
        elif (keys := _keys(use)) is not None:
            found.setdefault(Kind.KEYS, keys)
        elif op == "Dropout" and use.index == 2:
            found.setdefault(Kind.TRAINING_FLAG, Role(Kind.TRAINING_FLAG))
        elif op == "Equal":
            other = constant(node.inputs[1 - use.index])
            if other is not None and other.dtype.kind in "iuf":
                choices += [float(c) - use.shift for c in other.reshape(-1)[:8]]
        elif op == "Sub" and use.index == 1 and _is_one(node.inputs[0]):
            found.setdefault(Kind.MASK, Role(Kind.MASK))
        elif op in ("Sqrt", "Log") and floating:
            found.setdefault(Kind.POSITIVE, Role(Kind.POSITIVE))
        elif op == "Conv" and use.index == 0 and floating:
            shape = _dims(value)
            if shape is not None and len(shape) == 4 and _channels(node) in (1, 3, 4):
                found.setdefault(Kind.IMAGE, Role(Kind.IMAGE))
    if integer:
        return _integer_role(name, indexed, rows, min(shifts), found, choices)
    if dtype == ir.DataType.BOOL:
        for kind in (Kind.TRAINING_FLAG, Kind.CONDITION):
            if kind in found:
                return found[kind]
        return _mask_role(name, Kind.MASK) if _named(name, "mask") else Role(Kind.CONDITION)
    if Kind.SHAPE in found:
        return found[Kind.SHAPE]
    if _named(name, "mask"):
        return _mask_role(name, Kind.MASK if Kind.MASK in found else _float_mask(value))
    if _reaches_sqrt(value):
        return Role(Kind.POSITIVE)
    for kind in (Kind.POSITIVE, Kind.IMAGE):
        if kind in found:
            return found[kind]
    if _named(name, r"^lr$", "learning_rate", r"\blr\b"):
        return Role(Kind.RATE)
    return Role(Kind.NUMBER)


def _integer_role(name: str, indexed: bool, rows: list[Dim], lowest: int, found: dict[Kind, Role],
                  choices: list[float]) -> Role:
    # An index stays valid after a negative shift only if it starts above it.
    index = Role(Kind.INDEX, tuple(dict.fromkeys(rows)), max(0, -lowest))
    if indexed and _named(name, "position", r"pos_?ids", "cache_pos"):
        return Role(Kind.POSITION, index.rows, index.shift)
    if indexed and _named(name, "token_type", "segment"):
        return Role(Kind.INDEX, (*index.rows, Dim.of(2)), index.shift)
    if indexed:
        return index
    if _named(name, "mask") or Kind.MASK in found:
        return _mask_role(name, Kind.MASK)
    for kind in (Kind.KEYS, Kind.LENGTH, Kind.TRIP_COUNT, Kind.SHAPE, Kind.CONDITION):
        if kind in found:
            return found[kind]
    if _named(name, "len"):
        return Role(Kind.LENGTH)
    if _named(name, "position", r"pos_?ids"):
        return Role(Kind.POSITION)
    if choices:
        return Role(Kind.CHOICE, choices=tuple(dict.fromkeys(choices)))
    return Role(Kind.NUMBER)


def _mask_role(name: str, kind: Kind) -> Role:
    return Role(Kind.PADDING_MASK) if kind is Kind.MASK and _named(name, "padding_mask", "pad_mask") else Role(kind)


def _float_mask(value: ir.Value) -> Kind:
    """A float mask that is added straight to other data is additive; any other use wants 0 and 1."""
    for use in uses_of(value):
        if use.node.op_type == "Add" and constant(use.node.inputs[1 - use.index]) is None:
            return Kind.ADDITIVE_MASK
        if use.node.op_type in ("Attention", "MultiHeadAttention") and use.index >= 3:
            return Kind.ADDITIVE_MASK
    return Kind.MASK


def _is_one(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and array.dtype.kind in "iuf" and bool(np.all(array == 1))


def _channels(conv: ir.Node) -> int | None:
    weight = _dims(conv.inputs[1])
    return weight[1].as_int() if weight else None


def _reaches_sqrt(value: ir.Value) -> bool:
    """Whether the values reach a Sqrt through a few sums and products: a variance or a second moment."""
    layer, seen = [value], {id(value)}
    for _ in range(6):
        following: list[ir.Value] = []
        for current in layer:
            for use in current.uses():
                node = use.node
                if node.op_type in ("Sqrt", "Log"):
                    return True
                # x * x needs no positive x.
                square = node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
                if node.op_type in ("Mul", "Add", "Div", "Cast", "Identity", "Reshape", "Unsqueeze") and not square:
                    following += [o for o in node.outputs if id(o) not in seen]
        seen |= {id(o) for o in following}
        layer = following[:64]
    return any(u.node.op_type == "BatchNormalization" and u.idx == 4 for u in value.uses())
