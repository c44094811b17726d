"""Cast chains that lose nothing become one cast."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from norm_check import SPECIAL, loaded, ops, prepared, run

from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise import (
    CastChains,
    Shapes,
)
from tilegraph.rewrites.normalise.casts import is_exact_chain, is_lossless

X = {"x": SPECIAL}


F16, BF16, F32, F64 = (ir.DataType[n] for n in ("FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE"))
I8, I16, I32, I64 = (ir.DataType[n] for n in ("INT8", "INT16", "INT32", "INT64"))
U8, U16, U32, U64 = (ir.DataType[n] for n in ("UINT8", "UINT16", "UINT32", "UINT64"))
BOOL, STRING, F8 = (ir.DataType[n] for n in ("BOOL", "STRING", "FLOAT8E4M3FN"))


@pytest.mark.parametrize("chain", [
    (F16, F32, F16), (F16, F32, BF16), (BF16, F32, BF16), (F32, F64, F16), (I32, I64, I32), (I8, I64, U8),
    (U8, I16, F32), (BOOL, F32, I64), (BOOL, I64, BOOL), (I8, F16, F32), (I16, F32, I32), (I32, F64, BOOL),
    (U32, F64, I64),
])
def test_exact_chains(chain: tuple[ir.DataType, ...]) -> None:
    assert is_exact_chain(*chain)


@pytest.mark.parametrize("chain", [
    (F32, F16, F32), (F32, BF16, F32), (F16, BF16, F32), (BF16, F16, F32), (I64, F32, I64), (I32, F32, I32),
    (I64, I32, I64), (I8, U8, I32), (U8, I8, I32), (F32, I32, F32), (F32, BOOL, F32), (I8, F32, U8), (I32, F64, I16),
    (STRING, F32, F32), (F32, F64, STRING), (F8, F32, F8), (U64, F64, U64), (U16, F16, U32),
])
def test_inexact_chains(chain: tuple[ir.DataType, ...]) -> None:
    assert not is_exact_chain(*chain)


def test_lossless_is_what_numpy_says() -> None:
    kinds = [F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64]
    for source in kinds:
        for target in kinds:
            # numpy's "safe" also takes 64-bit integers as doubles, which loses.
            safe = np.can_cast(source.numpy(), target.numpy(), "safe")
            wide = source in (I64, U64) and target == F64
            assert is_lossless(source, target) == (safe and not wide), (source, target)


def test_the_pass_shortens_chains_and_leaves_shared_ones() -> None:
    model = prepared("""g (float16[8] x) => (float16[8] y, float[8] z) {
        a = Cast <to = 1> (x)  b = Cast <to = 11> (a)  y = Cast <to = 10> (b)  z = Neg(a) }""")
    run(CastChains(), model, modified=True, feeds={"x": SPECIAL.astype(np.float16)})
    cast = next(o for o in model.graph.outputs if o.name == "y").producer()
    assert cast is not None
    assert cast.inputs[0] is model.graph.inputs[0]
    assert len(ops(model)) == 4  # dead ones are another pass's


def test_the_pass_refuses_lossy_chains() -> None:
    model = prepared("g (float[8] x) => (float[8] y) { a = Cast <to = 10> (x)  y = Cast <to = 1> (a) }")
    run(CastChains(), model, modified=False)


def test_casts_without_a_known_type_stay() -> None:
    model = loaded("g (float[8] x) => (float[8] y) { u = my.ops.Any(x)  a = Cast <to = 1> (u)  y = Cast <to = 1> (a) }")
    Shapes().run(model, PassContext())
    run(CastChains(), model, modified=False)
