"""What `--tune` may tell a kernel generator, which else decides. Every choice is right; they differ in time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """None: the generator decides.

    `vectors`: of a panel of a matrix product, or of filters in a tile of a convolution. `rows`: of a block of a matrix
    product, or queries of a block of attention. `columns`: keys of a block of attention. `algorithm`: of a
    convolution, see `ops.conv.algorithm`.
    """

    vectors: int | None = None
    rows: int | None = None
    columns: int | None = None
    algorithm: str | None = None

    def __str__(self) -> str:
        """Such as "rows=64, columns=128"; "" where nothing is said."""
        return ", ".join(f"{name}={value}" for name, value in self.to_json().items())

    def to_json(self) -> dict[str, Any]:
        """What is said."""
        return {name: value for name, value in asdict(self).items() if value is not None}


DEFAULT = Schedule()
