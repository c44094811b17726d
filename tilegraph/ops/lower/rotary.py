"""RotaryEmbedding of ONNX: pairs of elements turned by an angle, as in its function body."""

from __future__ import annotations

from tilegraph.ops.index import Ix
from tilegraph.ops.lower.base import NodeContext, point
from tilegraph.ops.lower.gathers import place_of
from tilegraph.ops.lower.views import concat, reshape, take_range, transpose
from tilegraph.ops.prims import Pick, Prim
from tilegraph.spec.dims import Dim


def lower_rotary(c: NodeContext) -> list[Prim]:
    """x: [B, H, S, D], or [B, S, H * D] with num_heads. cos, sin: [B, S, R / 2]; R = rotary_embedding_dim or D.

    With position ids [B, S] the caches are [P, R / 2] and are looked up there.
    """
    x, cos, sin = c.arg(0), c.arg(1), c.arg(2)
    if c.optional(3) is not None:
        cos, sin = (_looked_up(c, cache, c.arg(3)) for cache in (cos, sin))
    before = x.shape
    flat = len(before) == 3
    if flat:
        heads = int(c.attr("num_heads", 0))
        size = before[2].exact_div(heads) if heads > 0 else None
        if size is None:
            raise c.decline(f"{before[2]} elements in {heads} heads")
        x = reshape(x, (before[0], before[1], Dim.of(heads), size))
    else:
        x = transpose(x, [0, 2, 1, 3])  # [B, S, H, D]
    turned = int(c.attr("rotary_embedding_dim", 0)) or x.shape[3].as_int()
    if turned is None or turned % 2:
        raise c.decline(f"RotaryEmbedding of {x.shape[3]} elements")
    if any(v.shape != (x.shape[0], x.shape[1], Dim.of(turned // 2)) for v in (cos, sin)):
        raise c.decline("the caches of RotaryEmbedding are not of shape [batch, sequence, half of the turned elements]")
    cos, sin = (reshape(v, (*v.shape[:2], Dim.of(1), v.shape[2])) for v in (cos, sin))
    half = Dim.of(turned // 2)
    interleaved = bool(int(c.attr("interleaved", 0)))
    step = 2 if interleaved else 1
    left = take_range(x, 3, 0, step, half)
    right = take_range(x, 3, 1 if interleaved else turned // 2, step, half)
    real = point("Sub", [point("Mul", [cos, left], x.dtype), point("Mul", [sin, right], x.dtype)], x.dtype)
    other = point("Add", [point("Mul", [sin, left], x.dtype), point("Mul", [cos, right], x.dtype)], x.dtype)
    if interleaved:
        pair = [reshape(v, (*v.shape, Dim.of(1))) for v in (real, other)]
        parts = [reshape(concat(pair, 4), (*x.shape[:3], Dim.of(turned)))]
    else:
        parts = [real, other]
    if x.shape[3] != turned:
        parts.append(take_range(x, 3, turned, 1, x.shape[3] - turned))
    result = parts[0] if len(parts) == 1 else concat(parts, 3)
    return [reshape(result, before) if flat else transpose(result, [0, 2, 1, 3])]


def _looked_up(c: NodeContext, cache: Prim, ids: Prim) -> Prim:
    """[B, S, R / 2] of a cache [P, R / 2]."""
    if len(cache.shape) != 2 or len(ids.shape) != 2:
        raise c.decline("RotaryEmbedding by position ids that are not [B, S], or with caches that are not [P, R / 2]")
    place = place_of(c, reshape(ids, (*ids.shape, Dim.of(1))), cache.shape[0])

    def pull(ix: tuple[Ix, ...], at: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (at[0], ix[2])

    return Pick((*ids.shape, cache.shape[1]), cache.dtype, source=cache, indices=(place,), extents=(cache.shape[0],),
                pull=pull, key="cache")
