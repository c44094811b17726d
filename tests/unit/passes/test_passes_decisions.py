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


def test_a_general_refusal_holds_where_nothing_else_is_said_of_the_node() -> None:
    log = Diagnostics()
    log.refused("layout", "sum", "no blocked form", general=True)
    log.refused("layout", "product", "no blocked form", general=True)
    log.refused("layout", "other", "no blocked form", general=True)
    log.refused("layout", "later", "no blocked form", general=True)
    log.refused("gemm", "product", "too small")
    log.took("fusion", "kernel", "2 nodes in one kernel", nodes=["sum", "x"])
    log.refused("fusion", "product", "no operator of regions", general=True)
    log.refused("fusion", "other", "no operator of regions", general=True)
    log.refused("fusion", "later", "no operator of regions", general=True)
    log.refused("fusion", "later", "costs more")  # its own stage has a reason now, which others' general ones leave
    log.refused("emit", "later", "nothing to do", general=True)
    assert [(d.stage, d.subject, d.reason) for d in log.refusals()] == [
        ("gemm", "product", "too small"), ("fusion", "other", "no operator of regions"),
        ("fusion", "later", "costs more")]


def test_what_a_stage_changed_by_itself_keeps_others_general_refusals() -> None:
    log = Diagnostics()
    log.refused("layout", "sum", "no blocked form", general=True)
    log.took("algebra", "sum", "one constant less")
    assert [d.stage for d in log.refusals()] == ["layout"]
