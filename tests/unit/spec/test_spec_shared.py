"""Programs whose JSON says an expression once: read back they are the same, and no short file stands for a huge one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegraph.spec.artifact import KernelCall, Program, Slot, TensorSpec
from tilegraph.spec.dims import Dim
from tilegraph.spec.shared import expand, share

H, W, N = map(Dim.symbol, ("h", "w", "@0"))


def program(*offsets: Dim, sizes: tuple[Dim, ...] = (), total: Dim = H) -> Program:
    shape = TensorSpec("x", "float32", (H, W, N))
    args = tuple(Slot("arena", d) for d in offsets)
    return Program((shape,), (shape,), total, (KernelCall("tg_a", (Slot("input", Dim.of(0)), *args), sizes, total, H),),
                   equal=((total, H),))


def test_what_is_used_again_is_there_once_and_reads_back() -> None:
    half = (H * 7 - 1) // 2
    made = program(half * 64 * W, half * 64 * W + W * 4096, sizes=(half, half * 64 * W), total=half * N)
    data = made.to_json()
    assert json.dumps(data).count('"//"') == 1
    assert data["named"][0][0] == "@@0"  # the model has a dim @0
    assert data["calls"][0]["args"][1][1] == data["calls"][0]["sizes"][1]  # one name
    assert Program.from_json(json.loads(json.dumps(data))) == made


def test_short_and_single_expressions_keep_their_place() -> None:
    data = program((H * 1000 + 5) // 7, H + 1, sizes=(H + 1,)).to_json()
    assert "named" not in data
    assert Program.from_json(data) == program((H * 1000 + 5) // 7, H + 1, sizes=(H + 1,))


@given(st.lists(st.tuples(st.sampled_from([H, W, N]), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=8))
def test_any_sums_read_back(terms: list[tuple[Dim, int, int]]) -> None:
    places, at = [], Dim.of(0)
    for symbol, factor, divisor in terms:
        at = at + (symbol + factor) // (divisor + 1) * factor
        places.append(at)
    made = program(*places, sizes=tuple(places), total=at)
    assert Program.from_json(json.loads(json.dumps(made.to_json()))) == made


def chain(length: int) -> dict[str, Any]:
    data = program(H).to_json()
    data["named"] = [["a0", "h"], *([f"a{i + 1}", ["+", f"a{i}", f"a{i}"]] for i in range(length))]
    data["calls"][0]["args"][1][1] = f"a{length}"
    return data


def test_names_that_double_each_other_are_refused() -> None:
    assert Program.from_json(chain(10)).calls[0].args[1].at == H * 1024
    with pytest.raises(ValueError, match="'a23' has more than 4194304 operations"):
        expand(chain(64))
    data = chain(20)
    data["calls"] *= 9
    with pytest.raises(ValueError, match="its expressions have more than 4194304"):
        expand(data)


@pytest.mark.parametrize("named", [[["a", 1], ["a", 2]], [[1, 2]], [["a"]]])
def test_bad_names_are_refused(named: list[Any]) -> None:
    data = program(H).to_json() | {"named": named}
    with pytest.raises(ValueError, match=r"no new name|unpack"):
        expand(data)


def test_what_is_shared_is_the_callers_no_longer() -> None:
    """`expand` leaves what it reads as it was."""
    data = program((H + 1000) // 7, (H + 1000) // 7).to_json()
    before = json.dumps(data)
    expand(data)
    assert json.dumps(data) == before
    assert share(expand(data)) == data
