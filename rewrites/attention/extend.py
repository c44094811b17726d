"""What an attention takes in around its products: views, scales, and masks that are made of positions.

Each step is tried and kept if what results is still one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

import onnx_ir as ir

from tilegraph.cost import estimate
from tilegraph.graph import GraphView
from tilegraph.ops.attention import AttentionSpace
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.caches import join, shorten
from tilegraph.rewrites.attention.candidate import Candidate
from tilegraph.rewrites.attention.find import Core
from tilegraph.rewrites.attention.operators import owner_of
from tilegraph.rewrites.attention.price import modifier_cost
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.spec.dims import Dim

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_MASK_NODES = 48
_MASK_COST = 32  # vector instructions for each vector of scores that computing a mask may take


class Extender:
    """Grows the core of one attention in `view`. `outside`: masks are made in front of it wherever they can be."""

    def __init__(self, core: Core, view: GraphView, verdicts: Verdicts[AttentionSpace], free: Callable[[ir.Node], bool],
                 pinned: Set[ir.Value], convex: Callable[[list[ir.Node]], bool], outside: bool = False) -> None:
        self.core = core
        self.view = view
        self.verdicts = verdicts
        self.free = free
        self.pinned = pinned
        self.convex = convex
        self.outside = outside

    def run(self) -> Candidate:
        """The largest attention around the core; `Decline` with the reason if the core is none."""
        for node in sorted(self.core.between | {self.core.first}, key=self.view.order.__getitem__):
            reader = self._reader(node, self.core.nodes)
            if reader is not None:
                raise Decline(f"{node.op_type} {node.name} inside it is also read by {reader}", node.name or "")
        reason: Decline | None = None
        best: Candidate | None = None
        try:
            best = self.examine(self.core.nodes | self.core.guard, self.core.second)
        except Decline as why:
            reason = why
        best = shorten(self._absorb(best, reason), self.examine, self._chain, self.free)
        return join(self._follow(best), self.examine, self._chain, self.free)

    def examine(self, nodes: Set[ir.Node], last: ir.Node, caches: tuple[ir.Node, ...] = ()) -> Candidate:
        ordered = tuple(sorted(nodes, key=self.view.order.__getitem__))
        core = self.core.nodes
        clones: set[ir.Node] = set()
        for node in reversed(ordered):  # what stays for others reads what stays with it
            if node not in core and node is not last and node not in caches \
                    and self._reader(node, nodes - clones) is not None:
                clones.add(node)
        if len(last.outputs) != 1:
            raise Decline(f"{last.op_type} {last.name} has several outputs")
        if not self.convex([n for n in ordered if n not in clones]):
            raise Decline("a path through other nodes leaves the attention and comes back")
        lowered, space = self.verdicts.ask(ordered, [last.outputs[0], *(n.outputs[0] for n in caches)])
        return Candidate(ordered, frozenset(clones), last.outputs[0], lowered, space, owner_of(self.core.first),
                         caches)

    def _reader(self, node: ir.Node, inside: Set[ir.Node]) -> str | None:
        """Who reads a result of `node` outside of `inside`, in words."""
        for value in node.outputs:
            if value in self.view.outputs:
                return "the graph's output"
            if value in self.pinned:
                return "another attention"
            for user in self.view.users(value):
                if user not in inside:
                    return f"{user.op_type} {user.name}"
        return None

    # -- upwards ----------------------------------------------------------------------------------------------
    def _absorb(self, best: Candidate | None, reason: Decline | None) -> Candidate:
        """Views and scales of the operands one by one, then the masks; the former again where only a mask, such as
        factors of 0 and 1 after the softmax, made it an attention."""
        nodes: set[ir.Node] = set(self.core.nodes | self.core.guard if best is None else best.nodes)
        best, reason = self._views(nodes, best, reason)
        before = best
        for value in () if self.outside and best is not None else self._modifiers():
            mask = self._mask(value)
            if not mask or mask <= nodes:
                continue
            try:
                wider_one = self.examine(nodes | mask, self.core.second)
                if best is not None and modifier_cost(wider_one.space) > modifier_cost(best.space) + _MASK_COST:
                    continue
            except Decline as why:
                reason = reason or why
                continue
            best, nodes = wider_one, nodes | mask
        if before is None and best is not None:
            best, reason = self._views(nodes, best, reason)
        if best is None:
            raise reason or Decline("it is no attention")
        return best

    def _views(self, nodes: set[ir.Node], best: Candidate | None,
               reason: Decline | None) -> tuple[Candidate | None, Decline | None]:
        """Adds what makes the operands to `nodes`, as far as there is one kernel then."""
        for value in self._operands():
            chain = list(self._chain(value))
            for count in range(len(chain), 0, -1):
                if nodes.issuperset(chain[:count]):
                    break
                try:
                    best = self.examine(nodes | set(chain[:count]), self.core.second)
                except Decline as why:
                    reason = reason or why
                    continue
                nodes |= set(chain[:count])
                break
        return best, reason

    def _operands(self) -> list[ir.Value]:
        """Queries, keys and values."""
        found = [v for v in self.core.first.inputs if v is not None]
        found += [v for k, v in enumerate(self.core.second.inputs) if v is not None and k != self.core.weights]
        return found

    def _chain(self, value: ir.Value) -> Iterator[ir.Node]:
        """The views, scales by a constant and casts from 16 bits that make `value`, nearest first."""
        node = value.producer()
        while node is not None and self.free(node) and node in self.view.order:
            if (kind_of(node) == "view" and node.op_type not in ("Concat", "Split")) or _widens(node):
                source = node.inputs[0]
            elif node.op_type in ("Mul", "Div") and len(node.inputs) == 2:
                source = next((v for v, other in (node.inputs, node.inputs[::-1])
                               if _is_scalar(other) and not _is_scalar(v)), None)
                if node.op_type == "Div" and source is not node.inputs[0]:
                    return
            else:
                return
            if source is None:
                return
            yield node
            node = source.producer()

    def _modifiers(self) -> list[ir.Value]:
        """What the nodes between the products read from outside."""
        inside = self.core.between | self.core.guard
        made = {v for n in inside | {self.core.first} for v in n.outputs}
        found = [v for n in sorted(inside, key=self.view.order.__getitem__) for v in n.inputs
                 if v is not None and v not in made]
        return list(dict.fromkeys(found))

    def _mask(self, value: ir.Value) -> frozenset[ir.Node]:
        """The nodes that make a mask out of positions and of things much smaller than it, or only views; else empty."""
        nodes: set[ir.Node] = set()
        leaves: set[ir.Value] = set()
        stack = [value]
        while stack:
            one = stack.pop()
            producer = one.producer()
            if producer is not None and (domain_of(producer), producer.op_type) == ("", "Shape") \
                    and producer in self.view.order and self.free(producer):
                nodes.add(producer)  # of what it reads only the extents matter
                continue
            if producer is None or producer not in self.view.order or not self.free(producer) \
                    or kind_of(producer) in (None, "reduction") or len(nodes) >= _MASK_NODES:
                leaves.add(one)
                continue
            if producer not in nodes:
                nodes.add(producer)
                stack.extend(v for v in producer.inputs if v is not None)
        small = all(constant_of(leaf) is not None or _elements(leaf) * 8 <= _elements(value) for leaf in leaves)
        moved = all(kind_of(n) == "view" or _widens(n) for n in nodes)
        return frozenset(nodes) if small or moved else frozenset()

    # -- downwards --------------------------------------------------------------------------------------------
    def _follow(self, best: Candidate) -> Candidate:
        """Views of the result that nothing else reads, and its rounding to 16 bits: the kernel writes what they make.
        """
        last, nodes = self.core.second, set(best.nodes)
        while True:
            users = self.view.users(last.outputs[0])
            if len(users) != 1 or last.outputs[0] in self.view.outputs or last.outputs[0] in self.pinned:
                return best
            user = users[0]
            rounds = user.op_type == "Cast" and user.outputs[0].dtype in _HALVES
            if not (rounds or user.op_type in ("Reshape", "Transpose", "Squeeze", "Unsqueeze")) \
                    or kind_of(user) is None or user.inputs[0] is not last.outputs[0] or not self.free(user):
                return best
            nodes.add(user)
            last = user
            try:
                best = self.examine(nodes, user)
            except Decline:
                if user.op_type != "Transpose":  # a reshape after it may make the result contiguous again
                    return best


def _widens(node: ir.Node) -> bool:
    """Whether it is a cast of a 16-bit float to float32, which kernels read as they are stored."""
    return node.op_type == "Cast" and node.inputs[0] is not None and node.inputs[0].dtype in _HALVES \
        and node.outputs[0].dtype == ir.DataType.FLOAT


def _is_scalar(value: ir.Value | None) -> bool:
    array = None if value is None else constant_of(value)
    return array is not None and array.size == 1


def _elements(value: ir.Value) -> int:
    if value.shape is None:
        return 1 << 40
    dims = [d if isinstance(d, int) else d.value for d in value.shape]
    return (1 << 40) if any(d is None for d in dims) else estimate(Dim.product(d for d in dims if d is not None))


