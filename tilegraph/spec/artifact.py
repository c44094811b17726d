"""The contract between the compiler and the serving side: what `manifest.json` says.

docs/manifest.md describes the file for people; `runtime/src/manifest.cc` reads the same fields. The compiler
never imports the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilegraph.spec.dims import Dim, Shape
from tilegraph.spec.shared import expand, share

MANIFEST_FORMAT = 1
KERNEL_ABI = 2  # kernels of 1 rely on less: scratch that holds anything
ARENA_ALIGNMENT = 64  # bytes

EP_NAME = "TileGraphExecutionProvider"
MANIFEST_FILE = "manifest.json"
REPORT_FILE = "report.json"
MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
PORTABLE_FILE = "portable.onnx"


def library_file(target: str) -> str:
    return f"kernels.{target}.so"


@dataclass(frozen=True)
class TensorSpec:
    """One argument of a partition. `dtype` is the ONNX name in lower case (float, float16, int64, bool, …).

    A dim that is a bare symbol is bound at its first occurrence, in the order of the inputs; every other dim is
    evaluated and checked on each run.
    """

    name: str
    dtype: str
    shape: Shape
    constant: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": [d.to_json() for d in self.shape],
                "constant": self.constant}

    @staticmethod
    def from_json(data: dict[str, Any]) -> TensorSpec:
        return TensorSpec(data["name"], data["dtype"], tuple(Dim.from_json(d) for d in data["shape"]),
                          bool(data["constant"]))


@dataclass(frozen=True)
class Slot:
    """Where a kernel argument lives: kind "input" or "output" with an index, or "arena" with a byte offset.

    `item`: of a value of which the arena holds one round's items only, the bytes of an item; see `Rounds`.
    """

    kind: str
    at: Dim
    item: Dim = field(default_factory=lambda: Dim.of(0))

    def to_json(self) -> list[Any]:
        return [self.kind, self.at.to_json(), *([] if self.item == 0 else [self.item.to_json()])]

    @staticmethod
    def from_json(data: list[Any]) -> Slot:
        return Slot(data[0], *map(Dim.from_json, data[1:]))


@dataclass(frozen=True)
class KernelCall:
    """One step of a partition's program.

    The compiled function is called as `symbol(args..., scratch, sizes..., begin, end)` (pointers, then int64),
    once or from several tasks, each with its own part of `[0, extent)` and its own `scratch` bytes (64-byte
    aligned; a null pointer when `scratch` is 0). `grain` is the least number of units worth a task of its own;
    every `begin` is a multiple of `align`. `name` is what errors of the run call it; "" for calls that report none.
    """

    symbol: str
    args: tuple[Slot, ...]
    sizes: tuple[Dim, ...]
    extent: Dim
    grain: Dim
    align: int = 1
    scratch: Dim = field(default_factory=lambda: Dim.of(0))
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        named = {"name": self.name} if self.name else {}
        return {"symbol": self.symbol, "args": [a.to_json() for a in self.args],
                "sizes": [s.to_json() for s in self.sizes], "extent": self.extent.to_json(),
                "grain": self.grain.to_json(), "align": self.align, "scratch": self.scratch.to_json(), **named}

    @staticmethod
    def from_json(data: dict[str, Any]) -> KernelCall:
        return KernelCall(data["symbol"], tuple(Slot.from_json(a) for a in data["args"]),
                          tuple(Dim.from_json(s) for s in data["sizes"]), Dim.from_json(data["extent"]),
                          Dim.from_json(data["grain"]), data["align"], Dim.from_json(data["scratch"]),
                          data.get("name", ""))


@dataclass(frozen=True)
class Rounds:
    """`calls` calls from `first` on that are done for `step` of their `items` at a time, so that what they hand each
    other stays in the caches. The extent of each is a multiple of `items`: the units of one item follow each other.
    `name`: the symbol of `step` in the program's other expressions."""

    first: int
    calls: int
    items: Dim
    step: Dim
    name: str

    def to_json(self) -> dict[str, Any]:
        return {"first": self.first, "calls": self.calls, "items": self.items.to_json(), "step": self.step.to_json(),
                "name": self.name}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Rounds:
        return Rounds(data["first"], data["calls"], Dim.from_json(data["items"]), Dim.from_json(data["step"]),
                      data["name"])


@dataclass(frozen=True)
class Program:
    """A partition as the serving side runs it: calls in order over inputs, outputs and one arena."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: Dim
    calls: tuple[KernelCall, ...]
    equal: tuple[tuple[Dim, Dim], ...] = ()  # extents that must be equal, checked on each run
    rounds: tuple[Rounds, ...] = ()

    def to_json(self) -> dict[str, Any]:
        equal = {"equal": [[a.to_json(), b.to_json()] for a, b in self.equal]} if self.equal else {}
        rounds = {"rounds": [r.to_json() for r in self.rounds]} if self.rounds else {}
        return share({"inputs": [t.to_json() for t in self.inputs], "outputs": [t.to_json() for t in self.outputs],
                      "arena": {"bytes": self.arena_bytes.to_json(), "alignment": ARENA_ALIGNMENT},
                      "calls": [c.to_json() for c in self.calls], **equal, **rounds})

    @staticmethod
    def from_json(data: dict[str, Any]) -> Program:
        data = expand(data)
        return Program(tuple(TensorSpec.from_json(t) for t in data["inputs"]),
                       tuple(TensorSpec.from_json(t) for t in data["outputs"]),
                       Dim.from_json(data["arena"]["bytes"]),
                       tuple(KernelCall.from_json(c) for c in data["calls"]),
                       tuple((Dim.from_json(a), Dim.from_json(b)) for a, b in data.get("equal", [])),
                       tuple(map(Rounds.from_json, data.get("rounds", []))))


@dataclass(frozen=True)
class Library:
    """The compiled library. `isa` is a base level plus named features, each checked before the first call."""

    file: str
    sha256: str
    bytes: int
    isa: str
    features: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "sha256": self.sha256, "bytes": self.bytes, "isa": self.isa,
                "features": list(self.features)}


@dataclass(frozen=True)
class Manifest:
    """All that manifest.json holds. `programs` is keyed by the EPContext node's `partition_name`.

    `report`, what was decided and why, goes into report.json beside it: the serving side has no use for it.
    """

    target: str
    library: Library
    programs: dict[str, Program]
    model_sha256: str
    tools: dict[str, str]
    report: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": MANIFEST_FORMAT, "abi": KERNEL_ABI, "target": self.target,
                "library": self.library.to_json(),
                "partitions": {k: p.to_json() for k, p in self.programs.items()},
                "model_sha256": self.model_sha256, "tools": self.tools}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Manifest:
        lib = data["library"]
        return Manifest(data["target"],
                        Library(lib["file"], lib["sha256"], lib["bytes"], lib["isa"], tuple(lib["features"])),
                        {k: Program.from_json(p) for k, p in data["partitions"].items()},
                        data["model_sha256"], data["tools"])
