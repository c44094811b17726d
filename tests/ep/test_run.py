"""A program's run: values, shapes, dtypes, constants, arena, and what ONNX Runtime makes of a node's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ep_support as ep
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tilegraph.spec.artifact import EP_NAME
from tilegraph.spec.dims import Dim

Serve = Callable[..., Any]
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument

# Copies end - begin units of `unit` bytes; arguments x, y, scratch, unit, begin, end.
COPY = r"""
KERNEL(copy) {
  int bad_tag = 0;
  const char* x = POINTER(const char, 0); char* y = POINTER(char, 1);
  int64_t unit = INTEGER(3), begin = BEGIN, end = END;
  CHECK_TAGS(6);
  memcpy(y + begin * unit, x + begin * unit, (end - begin) * unit);
  return 0;
}
"""


def copy_program(dtype: str, unit: int, *shape: Any) -> Any:
    total = Dim.product(shape)
    return ep.program([ep.tensor("x", dtype, *shape)], [ep.tensor("y", dtype, *shape)],
                      [ep.call("copy", [ep.source(0), ep.result(0)], [unit], total)])


def test_values(serve: Serve, add_one: Path) -> None:
    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program(3, 5)}))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1)


def test_our_provider_ran_it(serve: Serve, add_one: Path) -> None:
    assert serve(ep.Artifact(add_one, {"p": ep.add_one_program(4)})).get_providers()[0] == EP_NAME


@pytest.mark.parametrize("shapes", [[(1, 1), (2, 2)], [(7, 7), (1, 1), (7, 7)], [(0, 0), (3, 3), (0, 0)]])
def test_dynamic_dims(serve: Serve, add_one: Path, shapes: list[tuple[int, int]]) -> None:
    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program("n", "n")}))
    for shape in shapes:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1)


def test_expressions_of_dims(serve: Serve, add_one: Path) -> None:
    """Every operation, with Python's rounding, in an output's shape."""
    n, m = Dim.symbol("n"), Dim.symbol("m")
    dims = [n + m, n * m, (n - 7) // 2 + 4, (n - 7) % 3, Dim.min(n, m), Dim.max(n, m), (m + 1) // n, 2 * n * n - m]
    total = Dim.of(0)
    spec = ep.program([ep.tensor("x", "float", "n", "m")], [ep.tensor(f"y{i}", "float", d) for i, d in enumerate(dims)],
                      [ep.call("add_one", [ep.source(0), ep.result(0)], [total], total)])
    session = serve(ep.Artifact(add_one, {"p": spec}))
    for binding in ({"n": 3, "m": 5}, {"n": 2, "m": 4}, {"n": 9, "m": 1}):
        got = session.run(None, {"x": np.zeros((binding["n"], binding["m"]), np.float32)})
        assert [g.shape for g in got] == [(d.evaluate(binding),) for d in dims]


def test_dim_mismatch_names_everything(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    spec = ep.program([ep.tensor("x", "float", "batch", 4), ep.tensor("w", "float", "batch")],
                      [ep.tensor("y", "float", "batch", 4)],
                      [ep.call("scale", [ep.source(0), ep.source(1), ep.result(0)], [4, "batch"], Dim.of("batch") * 4)])
    # The graph leaves the dims open, so that ONNX Runtime's own check lets them pass.
    free = [helper.make_tensor_value_info("x", 1, ["a", "b"]), helper.make_tensor_value_info("w", 1, ["c"])]
    session = serve(ep.Artifact(compile_kernels(ep.SCALE), {"p": spec}, graph_inputs=free))
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"x": np.zeros((3, 4), np.float32), "w": np.zeros(2, np.float32)})
    for part in ("node_p", "input 1 'w'", "2 in dim 0", "expected 3", "batch", "dim 0 of input 'x'"):
        assert part in str(error.value)
    with pytest.raises(InvalidArgument, match=r"input 0 'x' has 5 in dim 1, expected 4;"):
        session.run(None, {"x": np.zeros((3, 5), np.float32), "w": np.zeros(3, np.float32)})
    # and the session goes on working
    got = session.run(None, {"x": np.ones((2, 4), np.float32), "w": np.full(2, 3, np.float32)})[0]
    np.testing.assert_array_equal(got, np.full((2, 4), 3))


def test_compound_dim_mismatch_says_the_values(serve: Serve, add_one: Path) -> None:
    free = [helper.make_tensor_value_info("x", 1, ["a", "b"])]
    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program("n", Dim.symbol("n") * 2 + 1)}, graph_inputs=free))
    with pytest.raises(InvalidArgument, match=r"has 4 in dim 1, expected 5 = 1 \+ \(?2 \* n\)? where n = 2"):
        session.run(None, {"x": np.zeros((2, 4), np.float32)})


def test_a_symbol_may_be_used_before_it_is_bound(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    n = Dim.symbol("n")
    spec = ep.program([ep.tensor("x", "float", n * 2), ep.tensor("w", "float", n)], [ep.tensor("y", "float", n * 2)],
                      [ep.call("scale", [ep.source(0), ep.source(1), ep.result(0)], [n * 2, n], n * 2)])
    session = serve(ep.Artifact(compile_kernels(ep.SCALE), {"p": spec}))
    got = session.run(None, {"x": np.arange(6, dtype=np.float32), "w": np.array([1, 10, 100], np.float32)})[0]
    np.testing.assert_array_equal(got, [0, 10, 200, 3, 40, 500])


def test_extents_that_a_model_joins_are_compared(serve: Serve, add_one: Path) -> None:
    n = Dim.symbol("n")
    spec = replace(ep.add_one_program("n"), equal=((n % 4, Dim.of(0)), (n, Dim.max(n, 8))))
    session = serve(ep.Artifact(add_one, {"p": spec}))
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(8, np.float32)})[0], np.ones(8))
    with pytest.raises(InvalidArgument, match=r"joins values whose extents n % 4 = 1 and 0 = 0 differ"):
        session.run(None, {"x": np.zeros(9, np.float32)})
    with pytest.raises(InvalidArgument, match=r"extents n = 4 and max\(8, n\) = 8 differ"):
        session.run(None, {"x": np.zeros(4, np.float32)})


def test_negative_sizes_are_refused(serve: Serve, add_one: Path) -> None:
    n = Dim.symbol("n")
    spec = ep.program([ep.tensor("x", "float", n)], [ep.tensor("y", "float", n - 3)],
                      [ep.call("add_one", [ep.source(0), ep.result(0)], [n - 3], n - 3)])
    session = serve(ep.Artifact(add_one, {"p": spec}))
    assert session.run(None, {"x": np.zeros(5, np.float32)})[0].shape == (2,)
    with pytest.raises(InvalidArgument, match="is -1 for these input shapes"):
        session.run(None, {"x": np.zeros(2, np.float32)})


def test_overflow_and_division_by_zero_are_refused(serve: Serve, add_one: Path) -> None:
    n = Dim.symbol("n")
    zero = Dim.of(0)
    for huge, reason in ((n * (1 << 62), "overflows 64 bits"), (Dim.of(8) // n, "divides by zero")):
        spec = ep.program([ep.tensor("x", "float", n)], [ep.tensor("y", "float", n)],
                          [ep.call("add_one", [ep.source(0), ep.result(0)], [n], zero, scratch=huge)])
        session = serve(ep.Artifact(add_one, {"p": spec}))
        with pytest.raises(InvalidArgument, match=reason):
            session.run(None, {"x": np.zeros(0 if "zero" in reason else 4, np.float32)})


def test_more_memory_than_there_is(serve: Serve, add_one: Path) -> None:
    n = Dim.symbol("n")
    spec = ep.program([ep.tensor("x", "float", n)], [ep.tensor("y", "float", n)],
                      [ep.call("add_one", [ep.source(0), ep.result(0)], [n], n)], arena_bytes=n * (1 << 60))
    session = serve(ep.Artifact(add_one, {"p": spec}))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.RuntimeException, match=r"node_p.*not enough memory"):
        session.run(None, {"x": np.zeros(4, np.float32)})
    assert session.run(None, {"x": np.zeros(0, np.float32)})[0].shape == (0,)


DTYPES = [("float", np.float32), ("double", np.float64), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16),
          ("bool", np.bool_), *[(f"{sign}int{bits}", np.dtype(f"{sign}int{bits}")) for sign in ("", "u")
                                for bits in (8, 16, 32, 64)]]


@pytest.mark.parametrize(("name", "dtype"), DTYPES, ids=[n for n, _ in DTYPES])
def test_every_dtype(serve: Serve, compile_kernels: Callable[..., Path], name: str, dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    session = serve(ep.Artifact(compile_kernels(COPY), {"p": copy_program(name, size, "n", 3)}))
    bits = np.random.default_rng(1).integers(0, 2 if name == "bool" else 256, (4, 3, size), dtype=np.uint8)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits.view(np.uint16).reshape(4, 3), 16) \
        if name == "bfloat16" else ort.OrtValue.ortvalue_from_numpy(bits.view(dtype).reshape(4, 3))
    got = session.run_with_ort_values(["y"], {"x": value})[0]
    assert got.element_type() == ep.onnx_dtype(name)
    binding = session.io_binding()
    out = np.zeros((4, 3, size), np.uint8)
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y", "cpu", 0, ep.onnx_dtype(name), [4, 3], out.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out, bits)


def test_wrong_dtype_is_said_when_the_model_is_loaded(serve: Serve, add_one: Path) -> None:
    graph = [helper.make_tensor_value_info("x", onnx.TensorProto.INT32, [3])]
    with pytest.raises(Exception, match=r"node_p.*input 0 'x' holds int32 in the model, compiled for float"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, graph_inputs=graph))


def test_wrong_rank(serve: Serve, add_one: Path) -> None:
    graph = [helper.make_tensor_value_info("x", 1, None)]
    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, graph_inputs=graph))
    with pytest.raises(InvalidArgument, match=r"input 0 'x' has 2 dims, compiled for 1"):
        session.run(None, {"x": np.zeros((3, 1), np.float32)})


def test_rank_zero(serve: Serve, add_one: Path) -> None:
    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program()}))
    got = session.run(None, {"x": np.array(41, np.float32)})[0]
    assert got.shape == ()
    assert got == 42


def test_rank_sixteen(serve: Serve, add_one: Path) -> None:
    shape: list[str | int] = ["n", *[1] * 14, 2]
    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program(*shape)}))
    x = np.arange(6, dtype=np.float32).reshape([3, *[1] * 14, 2])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1)


def test_unaligned_input_memory(serve: Serve, add_one: Path) -> None:
    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program("n")}))
    raw = np.zeros(100 * 4 + 4, np.uint8)
    x = raw[4:].view(np.float32)
    x[:] = np.arange(100)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1)


@pytest.mark.parametrize("offset", [0, 64, Dim.of("n") * 64])
def test_arena(serve: Serve, add_one: Path, offset: Any) -> None:
    session = serve(ep.Artifact(add_one, {"p": ep.chain_program("n", offset)}))
    for n in (5, 1000, 0, 5, 300000):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1 + 1)


def test_an_arena_offset_outside_is_refused(serve: Serve, add_one: Path) -> None:
    spec = ep.program([ep.tensor("x", "float", "n")], [ep.tensor("y", "float", "n")],
                      [ep.call("add_one", [ep.source(0), ep.arena(Dim.of("n") * 64)], ["n"], "n")], arena_bytes=128)
    session = serve(ep.Artifact(add_one, {"p": spec}))
    session.run(None, {"x": np.zeros(1, np.float32)})
    with pytest.raises(InvalidArgument, match="outside the arena"):
        session.run(None, {"x": np.zeros(3, np.float32)})


def test_arena_is_aligned(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    library = compile_kernels(ep.ADD_ONE + r"""
KERNEL(address) {
  int bad_tag = 0;
  char* at = POINTER(char, 0); float* y = POINTER(float, 1); char* scratch = POINTER(char, 2);
  CHECK_TAGS(5);
  y[0] = (float)((uint64_t)at % 64); y[1] = (float)((uint64_t)scratch % 64);
  return 0;
}""")
    spec = ep.program([ep.tensor("x", "float", 1)], [ep.tensor("y", "float", 2)],
                      [ep.call("address", [ep.arena(0), ep.result(0)], [], 1, scratch=100)], arena_bytes=77)
    session = serve(ep.Artifact(library, {"p": spec}))
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(1, np.float32)})[0], [0, 0])


def test_an_error_of_a_kernel(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    library = compile_kernels(r"""
KERNEL(fail) {
  int bad_tag = 0;
  const float* x = POINTER(const float, 0);
  if (x[0] == 1) return raise_error("ValueError", "x is one");
  return x[0] == 2 ? -2 : 0;
}""")
    spec = ep.program([ep.tensor("x", "float", 1)], [ep.tensor("y", "float", 1)],
                      [ep.call("fail", [ep.source(0), ep.result(0)], [], 1)])
    session = serve(ep.Artifact(library, {"p": spec}))
    failure = ort.capi.onnxruntime_pybind11_state.RuntimeException
    with pytest.raises(failure, match=r"node_p.*kernel 'fail' failed: ValueError: x is one \(from C\)"):
        session.run(None, {"x": np.ones(1, np.float32)})
    with pytest.raises(failure, match="kernel 'fail' failed: the kernel gave no message"):
        session.run(None, {"x": np.full(1, 2, np.float32)})
    assert session.get_providers()[0] == EP_NAME  # no fallback session was built
    session.run(None, {"x": np.zeros(1, np.float32)})
