"""The exponential of attention weights, compiled, on every order of magnitude it meets."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import numpy as np

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.rows import exp_falling
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.isa import host
from tilegraph.codegen.library import link


class _Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64))


def _run(x: np.ndarray[tuple[int], np.dtype[np.float32]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    e, lanes, isa = Emitter(), 16, host()
    source, target = e.flat("x", "float32"), e.flat("y", "float32")
    params = [t.pointer("p_x", "float32"), t.pointer("p_y", "float32"), t.var("n", "int64")]
    with e.loop("c", t.Div(params[2], e.i64(lanes))) as c:
        at = e.share(t.Mul(c, e.i64(lanes)))
        e.write(target, at, exp_falling(e.math, e.math.share(e.read(source, "float32", at, lanes))), lanes)
    body = t.sequence([t.declare(source, params[0]), t.declare(target, params[1]), *e.stmts])
    data = t.compile_object(t.prim_func("tg_exp", params, body), triple="x86_64-linux-gnu", mcpu=isa.base,
                            mattr=isa.llvm_mattr())
    result = np.full_like(x, 7)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.so"
        link({"tg_exp": data}, path)
        entry = ctypes.CDLL(str(path))["__tvm_ffi_tg_exp"]
    packed = (_Any * 3)(_Any(4, 0, x.ctypes.data), _Any(4, 0, result.ctypes.data), _Any(1, 0, len(x)))
    assert entry(None, packed, 3, ctypes.byref(_Any())) == 0
    return result


def test_normal_results_are_within_a_bit_and_a_quarter() -> None:
    bits = np.arange(0x80000000, 0xC2AEAC00, 257, dtype=np.uint32)  # -0 .. -87.33
    x = bits[:len(bits) // 16 * 16].view(np.float32).copy()
    want = np.exp(x.astype(np.float64))
    got = _run(x)
    assert np.max(np.abs(got - want) / np.spacing(want.astype(np.float32))) <= 1.25


def test_special_values() -> None:
    x = np.array([0.0, -0.0, -np.inf, np.nan, -88.0, -104.0, -1e4, -3.4e38, -87.3, -1e-45, *[-1.0] * 6], np.float32)
    got = _run(x)
    assert list(got[:2]) == [1, 1]
    assert np.isnan(got[3])
    assert list(got[[2, 4, 5, 6, 7]]) == [0] * 5
    assert got[8] > 0
    assert got[9] == 1
