"""Slots: sizes whose order cannot be proven."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilegraph.memory import Buffer, plan
from tilegraph.spec.dims import Dim

# Extents as image networks have them: each scale halves the one before, rounded up.
H, W = Dim.symbol("h"), Dim.symbol("w")


def scale(times: int) -> Dim:
    high, wide = H, W
    for _ in range(times):
        high, wide = (high - 1) // 2 + 1, (wide - 1) // 2 + 1
    return high * wide


CHANNELS = st.sampled_from([16, 24, 96, 480])
DRAWN = st.tuples(st.integers(0, 30), st.integers(0, 4), st.integers(0, 5), CHANNELS)
BUFFERS = st.lists(DRAWN, min_size=1, max_size=40)


def made(drawn: list[tuple[int, int, int, int]]) -> list[Buffer]:
    return [Buffer(f"b{i}", scale(times) * channels * 4, first, first + length)
            for i, (first, length, times, channels) in enumerate(drawn)]


@given(BUFFERS)
def test_buffers_alive_together_never_meet_and_expressions_stay_short(drawn: list[tuple[int, int, int, int]]) -> None:
    buffers = made(drawn)
    found = plan(buffers)
    for binding in ({"h": 640, "w": 640}, {"h": 1, "w": 1}, {"h": 33, "w": 1000}, {"h": 1000, "w": 7}):
        at = {b.name: found.offsets[b.name].evaluate(binding) for b in buffers}
        size = {b.name: b.bytes.evaluate(binding) for b in buffers}
        total = found.total.evaluate(binding)
        assert all(at[b.name] + size[b.name] <= total for b in buffers)
        assert total <= sum(-(-s // 64) * 64 for s in size.values())
        for i, a in enumerate(buffers):
            for b in buffers[i + 1:]:
                if a.first <= b.last and b.first <= a.last:
                    assert at[a.name] + size[a.name] <= at[b.name] or at[b.name] + size[b.name] <= at[a.name]


def test_an_image_network_of_many_scales() -> None:
    """Chains through six scales, each value alive for three steps: the plan is short and shares memory."""
    drawn = [(i, 3, i // 7, (16, 96, 24, 480)[i % 4]) for i in range(42)]
    found = plan(made(drawn))
    assert len(str(found.total)) < 4000
    binding = {"h": 640, "w": 640}
    assert found.total.evaluate(binding) < 0.75 * sum(b.bytes.evaluate(binding) for b in made(drawn))
