"""A fixed spread of the sweep: some of the corpus, of ONNX's node tests, every chain and every built model, small."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.conformance import covered
from tests.conformance.sweep import part_of, share, sweep, table
from tests.conformance.sweep_cases import Case, cases, open_case
from tests.conformance.sweep_worker import Result
from tilegraph.ops.lower.tables import COMPOSED, GENERATORS, REDUCTIONS, VIEWS
from tilegraph.ops.pointwise import POINTWISE

WORKERS = 2


def run(chosen: list[Case], offload: str = "all") -> list[Any]:
    results = sweep([(case, offload) for case in chosen], WORKERS)
    assert all(r.good for r in results), "\n" + table(results)
    return results


def test_chains() -> None:
    chosen = [c for c in cases(("chains",)) if c.name.endswith("-small")]
    assert len(chosen) > 20
    assert all(r.status == "kernel" for r in run(chosen))


def test_built_models() -> None:
    chosen = [c for c in cases(("built",)) if "-small-" in c.name]
    assert len(chosen) > 15
    assert all(r.status == "kernel" for r in run(chosen))


def test_corpus(corpus: Path) -> None:
    chosen = cases(("corpus",))[::12]
    assert len(chosen) > 20
    results = run(chosen)
    served = [r for r in results if r.status == "kernel"]
    assert len(served) >= 0.9 * len(results), table(results)


def regions_take(case: Case) -> bool:
    """Whether every operator of the node test is one that regions take."""
    path, _ = open_case(case)
    operators = {(n.domain, n.op_type) for n in onnx.load(path, load_external_data=False).graph.node}
    known = {*POINTWISE, *REDUCTIONS, *GENERATORS, *COMPOSED, *(("", name) for name in VIEWS), ("", "Constant")}
    return operators <= known


def test_node_tests() -> None:
    """A third of the tests of operators that regions take, in all their forms, and a few of the others."""
    everything = cases(("node",))
    inside = [c for c in everything if regions_take(c)]
    outside = [c for c in everything if c not in set(inside)]
    results = run(inside[::3] + outside[::40])
    counts = Counter(r.status for r in results)
    assert counts["kernel"] > 250, counts
    assert counts["unrunnable"] < 0.2 * len(results), counts


def test_other_sets() -> None:
    """Whole models of ONNX's own, lifted from opset 6 where they are that old."""
    chosen = cases(("pytorch-converted", "pytorch-operator"))[::30] + cases(("simple",))[::8]
    assert {r.status for r in run(chosen)} >= {"kernel", "ort"}


def test_the_table_of_operators() -> None:
    ends = {"exp": "kernel", "exp@dyn": "kernel", "nonzero_example": "ort"}
    found = covered.operators([Result("node", name, "all", status, refusals=[("because", 1)]).to_json()
                               for name, status in ends.items()])
    assert found["Exp"].ours == 2
    assert "| Exp | 13 | f32 | 2 | 0 | 0 |" in covered.table(found)
    assert "| NonZero | 1 | because |" in covered.table(found)


def die(case: Case, offload: str, connection: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def sleep(case: Case, offload: str, connection: Any) -> None:
    time.sleep(60)


def test_failures_are_found() -> None:
    """A child that crashes, one that hangs and a model that cannot be had are results, and not good ones."""
    case = Case("chains", "no_such_chain-small", limit=0.3)
    results = [sweep([(case, "all")], 1, body=body)[0] for body in (die, sleep)]
    (missing,) = sweep([(Case("chains", "no_such_chain-small"), "all")], 1)
    assert [r.status for r in (*results, missing)] == ["CRASH", "TIMEOUT", "CRASH"]
    assert "-11" in results[0].detail
    assert not any(r.good for r in (*results, missing))
    assert "failed: 2" in table(results)


def test_shares_make_up_the_whole() -> None:
    chosen = [Case("corpus", str(k)) for k in range(7)]
    assert [c for k in (1, 2, 3) for c in share(chosen, part_of(f"{k}/3"))] == chosen
    for text in ("0/3", "4/3", "1", "1/0", "a/b"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no share"):
            part_of(text)
