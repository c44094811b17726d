"""Which refusals still hold when everything is decided."""

from tilegraph.diagnostics import Diagnostics


def test_a_refusal_holds_until_its_stage_takes_the_node_or_says_more() -> None:
    log = Diagnostics()
    log.refused("fusion", "a", "too early")
    log.refused("gemm", "a", "no matrix")
    log.refused("fusion", "b", "no region")
    log.refused("fusion", "c", "no region")
    log.refused("fusion", "d", "no region")
    log.took("fusion", "kernel", "2 nodes in one kernel", nodes=["b", "x"])
    log.took("fusion", "d", "each kernel that reads it has a copy of it")
    log.refused("fusion", "c", "costs more")
    assert [(d.stage, d.subject, d.reason) for d in log.refusals()] == [
        ("fusion", "a", "too early"), ("gemm", "a", "no matrix"), ("fusion", "c", "costs more")]
    log.refused("fusion", "x", "taken before, and here again")
    assert log.refusals()[-1].subject == "x"
    assert len(log.to_json()) == 9  # nothing is forgotten


def test_refusals_without_a_name_are_all_kept() -> None:
    log = Diagnostics()
    log.refused("io", "", "one")
    log.refused("io", "", "another")
    assert [d.reason for d in log.refusals()] == ["one", "another"]
