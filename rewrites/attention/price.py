"""What an attention costs in ONNX Runtime and as one kernel. µs on one thread; figures only need to rank."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import onnx_ir as ir

from tilegraph.cost import CostModel, estimate
from tilegraph.ops.attention import FEW, AttentionSpace, Score
from tilegraph.ops.dtypes import BYTES, stored_name
from tilegraph.ops.lower import kind_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.space import Apply, Inst, Load, Place, insts
from tilegraph.rewrites.attention.candidate import Candidate
from tilegraph.rewrites.attention.density import Density
from tilegraph.rewrites.attention.find import is_product
from tilegraph.rewrites.attention.operators import owner_of
from tilegraph.spec.dims import Dim

_MIN_RATIO = 1.05
_MIN_GAIN_US = 5.0
_PARITY = 0.9  # estimates of dense attention that are this close are no loss
_KEYS = 512  # of a decoder that does not say
_BLOCK = 128
_FLOPS_PER_US = 95_000.0  # of a matrix product in ONNX Runtime
_KERNEL_FLOPS_PER_US = 95_000.0
_SOFTMAX_NS = 0.55  # per score, in ONNX Runtime
_EXPONENTIAL_NS = 0.22  # per score, in the kernel: exponential, maximum, sum
_INSTRUCTION_NS = 0.02  # per score and vector instruction of the modifier
_PACK_NS = 0.15  # per element of a key
_ROW_NS = 15.0  # for each row of each block of keys: maximum, sum and rescaling across a vector
# Operators of attention in ONNX Runtime: share of the products that they compute, and ns per score.
_OPERATORS = {"Attention": (1.0, 0.55), "MultiHeadAttention": (1.0, 0.2), "GroupQueryAttention": (0.75, 0.55)}
_MASKED_NS = 0.5  # per score, where a mask or positions hide some
_ASKED_US = 10.0  # an If around the kernel, with what it asks and what lies in the branch
_NODE_US = 5.0  # starting the kernel, and the session's part of it
_GROUP, _PANEL = 8, 32  # rows and keys that the kernel computes at a time
# With few queries: ns for each byte of keys and values that ONNX Runtime reads, that the kernel reads, and that are put
# together with a past.
_READ_NS, _KERNEL_READ_NS, _JOIN_NS = 0.035, 0.030, 0.036


@dataclass(frozen=True)
class AttentionCost:
    """Estimated µs, and what speaks against the kernel whatever they are."""

    runtime_us: float
    kernel_us: float
    obstacle: str = ""

    @property
    def wins(self) -> bool:
        return (not self.obstacle and self.runtime_us >= _MIN_RATIO * self.kernel_us
                and self.runtime_us - self.kernel_us >= _MIN_GAIN_US)

    @property
    def ratio(self) -> float:
        return self.runtime_us / self.kernel_us

    def __str__(self) -> str:
        estimates = f"estimated {self.kernel_us:.0f} µs against {self.runtime_us:.0f} µs in ONNX Runtime"
        return f"{self.obstacle}; {estimates}" if self.obstacle else estimates


def price(candidate: Candidate, density: Density | None, model: CostModel) -> AttentionCost:
    """`density`: what the mask leaves, None for all."""
    space = candidate.space
    known = space.i.extent.as_int()
    if space.has_few:
        return _few(candidate, known or 1, model)
    cost = _many(candidate, density, model)
    if space.has_few is None:
        # A decoder: a prompt in one run, one query in most others. One of them should win, and neither lose.
        one = _few(candidate, 1, model)
        if (cost.wins and one.ratio < 1) or (one.wins and cost.ratio >= _PARITY):
            return one
        return cost
    if known is not None and known < FEW:
        return replace(cost, obstacle=f"{known} queries are too few")
    if known is None and space.i.extent != space.j.extent:
        return replace(cost, obstacle=f"the number of queries ({space.i.extent}) may be 1 in a run: packing the keys "
                                      "would not pay")
    return cost


def _many(candidate: Candidate, density: Density | None, model: CostModel) -> AttentionCost:
    space = candidate.space
    batch, rows, keys = (estimate(d) for d in (Dim.product(v.extent for v in space.batch), space.i.extent,
                                               space.j.extent))
    flops = 2.0 * batch * rows * keys * (space.depth + space.width)
    elements = float(batch * rows * keys)
    runtime = _around_us(candidate, model)
    runtime += _products_us(candidate, flops / _FLOPS_PER_US, elements, model)
    padded = (-(-rows // _GROUP) * _GROUP * -(-keys // _PANEL) * _PANEL) / max(rows * keys, 1)
    share = 1.0 if density is None else density.blocks
    scores = flops / _KERNEL_FLOPS_PER_US * padded
    scores += elements * (_EXPONENTIAL_NS + _INSTRUCTION_NS * modifier_cost(space)) / 1e3
    scores += batch * rows * -(-keys // _BLOCK) * _ROW_NS / 1e3
    return AttentionCost(runtime, _NODE_US + share * scores + batch * keys * space.depth * _PACK_NS / 1e3)


def _few(candidate: Candidate, rows: int, model: CostModel) -> AttentionCost:
    """Both sides read keys and values at the speed of memory: ONNX Runtime for each head, the kernel for each group."""
    space = candidate.space
    batch, keys = estimate(Dim.product(v.extent for v in space.batch)), space.j.extent.as_int()
    if keys is None:
        keys = max(estimate(space.j.extent), _KEYS)
    group = Dim.product(v.extent for v in space.sharing).value
    flops = 2.0 * batch * rows * keys * (space.depth + space.width)
    elements = float(batch * rows * keys)
    read = 4.0 * batch * keys * (space.depth + space.width)
    products = max(read * _READ_NS / 1e3, flops / _FLOPS_PER_US)
    around = _around_us(candidate, model, set(candidate.caches)) if space.has_few else 0.0
    runtime = around + _products_us(candidate, products, elements, model, few=True)
    kernel = _NODE_US + max(read / group * _KERNEL_READ_NS / 1e3, 2 * flops / _KERNEL_FLOPS_PER_US)
    kernel += elements * (_EXPONENTIAL_NS + _INSTRUCTION_NS * modifier_cost(space)) / 1e3
    join = read / group * _JOIN_NS / 1e3
    made = len(candidate.caches) / 2  # of keys and values; a Concat in ONNX Runtime, or in its operator, costs as much
    kernel += made * join
    runtime += made * join
    if candidate.owner is not None and any(_is_joined(v, candidate) for _, v in candidate.lowered.inputs):
        kernel += (1 - made) * join
    if candidate.owner is not None and candidate.owner.asked:
        kernel += _ASKED_US
    return AttentionCost(runtime, kernel)


def _is_joined(value: ir.Value, candidate: Candidate) -> bool:
    """Whether keys or values are put together before the kernel, where the operator did it on the way."""
    producer = value.producer()
    return producer is not None and producer.op_type == "Concat" and owner_of(producer) == candidate.owner \
        and value.dtype == ir.DataType.FLOAT


def modifier_cost(space: AttentionSpace) -> int:
    """Vector instructions for one vector of scores; what is the same for all keys of a row is not among them."""
    moving: set[int] = set()
    for inst in insts(space.x):
        if isinstance(inst, Score) or _reads(inst, space) or any(id(a) in moving for a in inst.args):
            moving.add(id(inst))
    return sum(inst.point.cost for inst in insts(space.x) if isinstance(inst, Apply) and id(inst) in moving)


def _around_us(candidate: Candidate, model: CostModel, without: Set[ir.Node] = frozenset()) -> float:
    """What ONNX Runtime takes for the nodes besides the products; those of an operator are part of it."""
    return sum(_runtime_us(node, model) for node in candidate.nodes
               if node not in candidate.clones and node not in without and not is_product(node)
               and owner_of(node) is None)


def _products_us(candidate: Candidate, products: float, elements: float, model: CostModel,
                 few: bool = False) -> float:
    """What ONNX Runtime takes for the two products, or for the operator, whose kernel computes every score. With few
    queries on a past there is no half of the scores that an operator could leave out."""
    if candidate.owner is None:
        return 2 * model.node_us("MatMul", 0, 0) + products
    masked = any(_reads(inst, candidate.space) for inst in insts(candidate.space.x))
    share, per_score = _OPERATORS[candidate.owner.op]
    share = 1.0 if few else share
    return model.node_us("MatMul", 0, 0) + share * products + elements * (per_score + masked * _MASKED_NS) / 1e3


def _runtime_us(node: ir.Node, model: CostModel) -> float:
    """A node in ONNX Runtime; it folds scales and transposes of the last two dims into the products."""
    if node.op_type in ("Mul", "Div") and any(
            v is not None and (array := constant_of(v)) is not None and array.size == 1 for v in node.inputs):
        return 0.0
    perm = node.attributes.get("perm")
    if node.op_type == "Transpose" and perm is not None:
        order = list(perm.as_ints())
        if order[:-2] == list(range(len(order) - 2)):
            return 0.0
    size = sum(_elements(v) for v in node.outputs)
    if node.op_type == "Softmax":
        return model.node_us("Identity", 0, 0) + size * _SOFTMAX_NS / 1e3
    if kind_of(node) == "view" and node.op_type != "Transpose":
        return model.node_us("Reshape", 0, 0)
    moved = sum(_elements(v) * BYTES[stored_name(v.dtype)] for v in (*node.inputs, *node.outputs)
                if v is not None and v.dtype is not None)
    return model.node_us(node.op_type, size, moved)


def _elements(value: ir.Value) -> int:
    if value.shape is None:
        return 0
    dims = [d if isinstance(d, int) else d.value for d in value.shape]
    return 0 if any(d is None for d in dims) else estimate(Dim.product(d for d in dims if d is not None))


def kind_of_mask(space: AttentionSpace) -> str:
    """What decides over keys: "positions", "mask" (read from memory), both joined by "+", or "dense" for neither."""
    found = set()
    for inst in insts(space.x):
        if _reads(inst, space) and isinstance(inst, Load):
            found.add("mask")
        elif _reads(inst, space):
            found.add("positions")
    return "+".join(sorted(found)) or "dense"


def _reads(inst: Inst, space: AttentionSpace) -> bool:
    if isinstance(inst, Score):
        return False
    return (isinstance(inst, Load) and space.j in inst.address.vars()) or (
        isinstance(inst, Place) and space.j in inst.index.vars())
