"""Kernels for a machine with tiny caches: blocks, parts of sums and rounds of a few elements, so that graphs of small
values run the loops that are otherwise for large ones."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Module, name, value: what a kernel does by the size of its operands, at sizes that random graphs have. None of it
# may change what is computed, but for the order of sums.
CONSTANTS = (
    ("tilegraph.codegen.gemm.tile", "BLOCK_ROWS", 32),
    ("tilegraph.codegen.gemm.kernel", "CHUNK", 8),
    ("tilegraph.codegen.gemm.plain", "_PART", 16),
    ("tilegraph.codegen.gemm.tile", "_CACHE", 1 << 8),
    ("tilegraph.codegen.gemm.words", "CHUNK", 32),
    ("tilegraph.codegen.conv.direct", "CHUNK", 4),
    ("tilegraph.codegen.conv.direct", "STREAMED", 0),
    ("tilegraph.codegen.conv.winograd", "CHUNK", 16),
    ("tilegraph.codegen.conv.winograd", "STREAMED", 0),
    ("tilegraph.codegen.conv.winograd", "_VALUES", 1 << 9),
    ("tilegraph.codegen.conv.sliding", "PIXELS", 8),
    ("tilegraph.codegen.conv.sliding", "SCALED_PIXELS", 16),
    ("tilegraph.codegen.conv.results", "UNROLLED", 0),
    ("tilegraph.codegen.rows.across", "_SUMMED", 4),
    ("tilegraph.ops.conv.lower", "MAX_PRODUCTS", 16),
    ("tilegraph.ops.conv.algorithm", "_MIN_TILES", 1),
    ("tilegraph.ops.attention.space", "ENOUGH", 1 << 20),
    ("tilegraph.ops.attention.space", "LEAST", 2),
    ("tilegraph.compiler.rounds", "_CACHE", 1 << 9),
    ("tilegraph.compiler.rounds", "_TASKS", 1),
)


@contextmanager
def small_blocks(folder: Path) -> Iterator[None]:
    """While it is open, kernels are made so, and kept in a cache below `folder`: keys do not tell constants."""
    cache = os.environ.get("TILEGRAPH_CACHE_DIR")
    modules = [importlib.import_module(module) for module, _, _ in CONSTANTS]
    before = [getattr(m, name) for m, (_, name, _) in zip(modules, CONSTANTS, strict=True)]
    os.environ["TILEGRAPH_CACHE_DIR"] = str(folder / "small")
    try:
        for module, (_, name, value) in zip(modules, CONSTANTS, strict=True):
            setattr(module, name, value)
        yield
    finally:
        if cache is None:
            del os.environ["TILEGRAPH_CACHE_DIR"]
        else:
            os.environ["TILEGRAPH_CACHE_DIR"] = cache
        for module, (_, name, _), value in zip(modules, CONSTANTS, before, strict=True):
            setattr(module, name, value)
