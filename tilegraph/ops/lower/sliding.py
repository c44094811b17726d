"""The spatial dims of nodes that slide a window: what result reads which elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilegraph.ops.lower.base import NodeContext
from tilegraph.spec.dims import Dim, Shape


@dataclass(frozen=True)
class Axis:
    """One spatial dim: `out` results over `size` elements, of which result y reads y*stride + k*dilation - before for
    k in 0 .. kernel-1, as far as they exist."""

    size: Dim
    out: Dim
    kernel: Dim
    stride: int = 1
    dilation: int = 1
    before: int = 0

    @property
    def plain(self) -> bool:
        """Whether result y reads element y alone."""
        return self.kernel == 1 and self.stride == 1 and self.before == 0 and self.size == self.out

    def text(self) -> str:
        return f"{self.size}>{self.out}:{self.kernel}/{self.stride}*{self.dilation}-{self.before}"


def window_axes(c: NodeContext, sizes: Shape, kernel: Sequence[int]) -> tuple[Axis, ...]:
    """The spatial dims; `Decline` where the inferred extents are not those of the attributes."""
    rank = len(sizes)
    strides = [int(s) for s in c.attr("strides") or [1] * rank]
    dilations = [int(d) for d in c.attr("dilations") or [1] * rank]
    pads = _window_pads(c, sizes, kernel, strides, dilations)
    found = []
    for k, out in enumerate(c.output_shape()[2:]):
        reach = dilations[k] * (kernel[k] - 1) + 1
        size, padded = sizes[k].as_int(), sizes[k] + (pads[k] + pads[k + rank])
        want = (padded - reach).as_int()
        if size is not None and want is not None:
            ceil = bool(c.attr("ceil_mode", 0))
            count = (-(-want // strides[k]) if ceil else want // strides[k]) + 1
            if ceil and (count - 1) * strides[k] >= size + pads[k]:
                count -= 1  # a window that starts in the padding behind the end is left out
            if want < 0 or out != count:
                raise c.decline(f"{out} results were inferred where the attributes give {count}")
        elif out not in c.rename.values() and (not c.attr("ceil_mode", 0) or strides[k] + pads[k + rank] <= reach):
            # By the extents of the source, which a kernel knows; those of the model's inputs it may not. Rounded up, no
            # window of these starts in the padding behind the end.
            out = (padded - reach + (strides[k] - 1 if c.attr("ceil_mode", 0) else 0)) // strides[k] + 1
        found.append(Axis(sizes[k], out, Dim.of(kernel[k]), strides[k], dilations[k], pads[k]))
    return tuple(found)


def _window_pads(c: NodeContext, sizes: Shape, kernel: Sequence[int], strides: Sequence[int],
                 dilations: Sequence[int]) -> list[int]:
    """All begins, then all ends."""
    auto = c.attr("auto_pad", "NOTSET")
    rank = len(sizes)
    if auto == "NOTSET":
        pads = [int(p) for p in c.attr("pads") or [0] * (2 * rank)]
        if min(pads) < 0:
            raise c.decline(f"negative pads {pads}, which ONNX Runtime refuses too")
        return pads
    if auto == "VALID":
        return [0] * (2 * rank)
    if c.node.op_type != "Conv" and any(d != 1 for d in dilations):
        raise c.decline(f"auto_pad {auto} of a dilated window: ONNX Runtime pads as much as an undilated one needs")
    begins, ends = [], []
    for k, extent in enumerate(sizes):
        size = extent.as_int()
        if size is None and strides[k] != 1:
            raise c.decline(f"auto_pad {auto} of the symbolic extent {extent}")
        reach = dilations[k] * (kernel[k] - 1) + 1
        total = reach - 1 if size is None else max((-(-size // strides[k]) - 1) * strides[k] + reach - size, 0)
        small, large = total // 2, total - total // 2
        begins.append(small if auto == "SAME_UPPER" else large)
        ends.append(large if auto == "SAME_UPPER" else small)
    return begins + ends
