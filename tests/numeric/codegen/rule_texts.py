"""Pieces of the graphs with which the lowering rules are tested."""

from __future__ import annotations


def k(name: str, *values: int) -> str:
    """A constant list of integers."""
    return f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values))}}}>() "


R = "(float[2,3,7] x) =>"


def resized(size: str, mode: str, transform: str, nearest: str = "round_prefer_floor") -> str:
    sizes = k("s", 1, 2, *(int(n) for n in size.split(",")))
    return (f"(float[1,2,5,7] x) => (float[1,2,{size}] y) {{ {sizes} v = Resize<mode=\"{mode}\", nearest_mode="
            f"\"{nearest}\", coordinate_transformation_mode=\"{transform}\">(x, , , s) y = Neg(v) }}")
