"""What a kernel needs beside inputs and outputs, counted: it grows with the keys, never with queries times keys."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from tests.numeric.attention.test_attn_few import decoder
from tests.unit.attention.attn_support import fused
from tests.unit.attention.spellings import Spelling
from tilegraph.codegen.attention import generate
from tilegraph.ops.attention import lower_attention, plan_attention

KEYS = 16384
TASKS = 8  # four for each of two threads, each with a scratch of its own


@pytest.mark.parametrize("mask", ["none", "positions", "window"])
def test_a_long_prompt(mask: str) -> None:
    bytes_at = scratch(Spelling(1, 12, 64, 64, 64, 64, mask=mask, symbolic=True).model())
    assert TASKS * bytes_at(KEYS) <= 64 << 20
    assert bytes_at(KEYS) - bytes_at(KEYS // 2) == KEYS // 2 * 64 * 4  # one packed head


def test_few_queries_need_no_memory_for_the_keys() -> None:
    assert scratch(decoder(12, 12, 1, KEYS, 64, 64))(KEYS) <= 128 << 10


def scratch(model: onnx.ModelProto) -> Callable[[int], int]:
    """Bytes of one task's scratch by the number of queries and keys."""
    graph, decisions = fused(model)
    assert [d.taken for d in decisions] == [True]
    (function,) = graph.functions.values()
    lowered = lower_attention(list(function), list(function.outputs), function.opset_imports)
    kernel = generate(plan_attention(lowered), "tg_test", 512).kernel
    return lambda size: kernel.scratch.evaluate(dict.fromkeys(kernel.scratch.symbols, size))
