"""Cast chains: Cast(Cast(x, A to B), B to C) becomes Cast(x, A to C) when A to B loses nothing.

Handles: bool, integers and floats up to 64 bits, where every value of A is a value of B (float16 to float32, int32 to
int64 or double, bool to anything). Refused: a lossy first cast (float32 to float16, int64 to float), float8 and
strings, and integers that go through a float to a narrower or unsigned integer (out of range is undefined there, but
wraps in a direct cast).
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import is_op

_D = ir.DataType
# Bits of the significand, the implicit one included, and of the exponent.
_FLOATS = {_D.FLOAT16: (11, 5), _D.BFLOAT16: (8, 8), _D.FLOAT: (24, 8), _D.DOUBLE: (53, 11)}
_INTS = {_D.INT8: (True, 8), _D.INT16: (True, 16), _D.INT32: (True, 32), _D.INT64: (True, 64),
         _D.UINT8: (False, 8), _D.UINT16: (False, 16), _D.UINT32: (False, 32), _D.UINT64: (False, 64)}


class CastChains(Pass):
    name = "casts"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for graph in all_graphs(model):
            for node in graph:
                while is_op(node, "Cast") and _shorten(node):
                    modified = True
        return PassResult(modified)


def _shorten(node: ir.Node) -> bool:
    middle = node.inputs[0]
    inner = middle.producer() if middle is not None else None
    while inner is not None and is_op(inner, "Identity") and inner.inputs[0] is not None:
        inner = inner.inputs[0].producer()
    if inner is None or not is_op(inner, "Cast") or node.attributes["to"].is_ref() or inner.attributes["to"].is_ref():
        return False
    source = inner.inputs[0]
    if source is None or source.dtype is None:
        return False
    through, target = (ir.DataType(n.attributes["to"].as_int()) for n in (inner, node))
    if not is_exact_chain(source.dtype, through, target):
        return False
    node.replace_input_with(0, source)
    return True


def is_lossless(source: ir.DataType, target: ir.DataType) -> bool:
    """Whether every value of `source` is a value of `target`."""
    if source == target:
        return source in _FLOATS or source in _INTS or source == _D.BOOL
    if source == _D.BOOL:
        return target in _FLOATS or target in _INTS
    if source in _INTS and target in _INTS:
        (signed, bits), (to_signed, to_bits) = _INTS[source], _INTS[target]
        return (to_bits >= bits and (signed == to_signed)) or (not signed and to_signed and to_bits > bits)
    if source in _INTS and target in _FLOATS:
        signed, bits = _INTS[source]
        # The most negative value is a power of two; the largest magnitude must also be below the largest float.
        return bits - signed <= _FLOATS[target][0] and bits < 1 << (_FLOATS[target][1] - 1)
    if source in _FLOATS and target in _FLOATS:
        return all(a <= b for a, b in zip(_FLOATS[source], _FLOATS[target], strict=True))
    return False


def is_exact_chain(source: ir.DataType, through: ir.DataType, target: ir.DataType) -> bool:
    """Whether casting `source` to `target` directly gives what casting through `through` gives, always."""
    if not is_lossless(source, through):
        return False
    if target not in _FLOATS and target not in _INTS and target != _D.BOOL:
        return False
    undefined = source in _INTS and through in _FLOATS and target in _INTS
    return not undefined or is_lossless(source, target)
