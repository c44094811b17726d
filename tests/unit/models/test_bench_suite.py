"""The verdicts of `make bench`, its tables and its options, on made-up timings."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from models import bench as suite
from models import pipeline, report
from models.cases import BATCHES, GROUPS, Case, cases
from models.overhead import LIMIT_S, Overhead
from models.pipeline import Outcome, shortfalls
from models.required import HIGHLIGHTS, MUST_BEST, MUST_HOLD
from models.zoo import _ALL
from tilegraph.bench import BenchResult, ModelTiming, Peer, WorkerDied, WorkerRefused
from tilegraph.bench.kinds import KINDS, Found
from tilegraph.bench.process import WorkerOutOfMemory
from tilegraph.bench.rivals import Rival

ZOO_NAMES = [model.name for model in _ALL]


def _timing(name: str, median: float, ratio: tuple[float, float, float], create: float) -> ModelTiming:
    return ModelTiming(name, name, "P", median, median, median, *ratio, create, 200_000_000, 1, 1, 1, (median,))


def _bench(ratio: float, low: float, high: float, *, threads: int = 1, create: float = 0.01) -> BenchResult:
    first = _timing("original", 1e-3, (1.0, 1.0, 1.0), 0.01)
    ours = _timing("ours", 1e-3 / ratio, (ratio, low, high), create)
    return BenchResult(threads, 30, {"cpu": "A CPU", "python": "3", "tilegraph": "1", "onnxruntime": "2"},
                       (first, ours), 0.957, None, {})


def _case(group: str, must_hold: float | None = None) -> Case:
    return Case("m", group, Path, dict, must_hold=must_hold)


def test_a_chain_must_reach_its_ratio_at_one_thread() -> None:
    chain = _case("chains", 5.0)
    assert shortfalls(chain, {1: _bench(5.0, 4.8, 5.2)}) == []
    assert shortfalls(chain, {1: _bench(4.9, 4.8, 5.2)}) == ["4.90x at 1 thread, 5x is required"]
    assert shortfalls(chain, {1: _bench(5.1, 5, 5.2), 2: _bench(3.0, 2.9, 3.1, threads=2)}) == []


def test_a_model_must_not_be_slower_at_any_thread_count() -> None:
    model = _case("zoo")
    assert shortfalls(model, {1: _bench(0.97, 0.95, 0.98), 2: _bench(1.2, 1.1, 1.3)}) == []
    missed = shortfalls(model, {1: _bench(1.2, 1.1, 1.3), 2: _bench(0.95, 0.93, 0.97)})
    assert len(missed) == 1
    assert "2 thread(s): 0.95 [0.93, 0.97]" in missed[0]


def test_a_session_must_not_take_longer_to_create() -> None:
    assert shortfalls(_case("built"), {1: _bench(1.2, 1.1, 1.3, create=0.0104)}) == []
    missed = shortfalls(_case("built"), {1: _bench(1.2, 1.1, 1.3, create=0.02)})
    assert missed == ["the session takes 20.0 ms to create, ONNX Runtime's of the original 10.0"]
    assert shortfalls(_case("built"), {2: _bench(1.2, 1.1, 1.3, create=math.nan)}) == []


def test_too_little_memory_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    def path() -> Path:
        raise WorkerOutOfMemory("m.onnx: ours needs more memory than the 1.0 GB that are free")

    outcome = pipeline.run_case(Case("m", "attention", path, dict), out=tmp_path)
    assert outcome.verdict == "skipped"
    assert report.skip_lines([outcome]) == ["m: skipped: m.onnx: ours needs more memory than the 1.0 GB that are free"]
    assert "1 skipped" in report.markdown([outcome], (1,), [])


@pytest.mark.parametrize("group", GROUPS)
def test_case_names_are_unique_and_chains_carry_their_ratio(group: str) -> None:
    names = [c.name for c in cases(group)]
    assert len(names) == len(set(names))
    if group == "chains":
        assert sum(c.must_hold is not None for c in cases(group)) >= 9
    elif group == "attention":
        assert all(c.must_hold is not None and "torch-sdpa" in c.reference for c in cases(group))
    else:
        assert {c.name: c.must_hold for c in cases(group) if c.must_hold is not None}.items() <= MUST_HOLD.items()


def test_every_builder_is_benchmarked() -> None:
    from models import builders

    text = Path(suite.__file__).with_name("cases.py").read_text()
    assert all(f'"{name}"' in text for name in builders.names())


def _outcomes() -> list[Outcome]:
    good = Outcome(_case("zoo"), "1x128", 1.5, same=True, benches={1: _bench(2.0, 1.9, 2.1)}, verdict="pass")
    wrong = Outcome(_case("chains", 5.0), "1x512", 0.5, same=False, verdict="wrong")
    return [good, wrong]


def test_tables_lead_with_ratios_and_name_the_cpu() -> None:
    stream = io.StringIO()
    Console(file=stream, width=200).print(report.terminal(_outcomes(), (1,), "t"))
    text = stream.getvalue()
    for part in ("A CPU", "2.00 [1.90, 2.10]", "1 ms → 500 µs", "200 MB → 200 MB", "differ", "wrong", "≥ 5"):
        assert part in text, part
    block = report.markdown(_outcomes(), (1,), ["a line"])
    assert block.startswith("A CPU")
    assert "1 pass, 1 wrong" in block
    assert "| m | 1x128 | 2.00 [1.90, 2.10] | not slower |" in block
    assert block.endswith("- a line")
    lengths = {row.count("|") for row in block.splitlines() if row.startswith("|")}
    assert len(lengths) == 1


def _with_peers() -> Outcome:
    """tilegraph at 2.0, OpenVINO at 2.5 and another peer at 1.5 of ONNX Runtime; one peer had wrong answers."""
    times = {"original": (1e-3, 1.1e-3, 0.9e-3), "ours": (5e-4, 5.5e-4, 4.5e-4), "slow": (7e-4, 7e-4, 7e-4),
             "openvino": (4e-4, 4.4e-4, 3.6e-4)}
    models = tuple(replace(_timing(name, s[0], (1e-3 / s[0],) * 3, math.nan), samples_s=s)
                   for name, s in times.items())
    result = replace(_bench(2.0, 1.9, 2.1), models=models)
    rivals = [Rival("slow", peer=Peer("slow", Path())), Rival("openvino", peer=Peer("openvino", Path())),
              Rival("onnxsim", reason="wrong answers: output 0\nis off"),
              Rival("torch-sdpa", reason="absent: no torch")]
    return Outcome(_case("zoo"), "1x128", 1.5, same=True, benches={1: result}, rivals=rivals, verdict="pass")


def test_the_best_peer_is_named_with_its_ratio_to_ours() -> None:
    outcome = _with_peers()
    best = outcome.best_peer(1)
    assert best is not None
    assert (best[0], round(best[1].median, 3)) == ("openvino", 0.8)
    assert outcome.best_peer(2) is None
    assert outcome.to_json()["best_peer"]["1"]["name"] == "openvino"
    block = report.markdown([outcome, *_outcomes()], (1,), [])
    assert "| best peer, 1 thread |" in block
    assert "| openvino 0.80 [0.80, 0.80] |" in block
    assert len({row.count("|") for row in block.splitlines() if row.startswith("|")}) == 1
    assert "best peer, 1 thread" not in report.markdown(_outcomes(), (1,), [])
    stream = io.StringIO()
    Console(file=stream, width=220).print(report.terminal([outcome], (1,), "t"))
    assert "openvino 0.80 [0.80, 0.80]" in stream.getvalue()


def test_onnx_runtime_on_the_original_can_be_the_best_peer() -> None:
    outcome = _with_peers()
    result = outcome.benches[1]
    outcome.benches[1] = replace(result, models=result.models[:2])
    best = outcome.best_peer(1)
    assert best is not None
    assert (best[0], round(best[1].median, 3)) == ("original", 2.0)


def test_a_model_must_reach_its_ratio_to_the_best_peer_where_there_are_peers() -> None:
    case = replace(_case("zoo"), must_best=0.9)
    result = _with_peers().benches[1]
    # The peer's 2.5 are ahead, so ours is at 0.8 of the best.
    assert shortfalls(case, {1: result}) == ["0.80x of the best peer (openvino), 0.9x is required"]
    assert shortfalls(replace(case, must_best=0.7), {1: result}) == []
    assert shortfalls(case, {2: replace(result, threads=2)}) == []
    assert shortfalls(case, {1: replace(result, models=result.models[:2])}) == []
    # OpenVINO does not count here, and is still named first.
    counted = replace(case, reference=("slow",))
    assert shortfalls(replace(counted, must_best=1.3), {1: result}) == []
    assert shortfalls(replace(counted, must_best=1.5), {1: result}) == [
        "1.40x of the best peer (slow), 1.5x is required"]
    outcome = replace(_with_peers(), case=counted)
    assert "| openvino 0.80 [0.80, 0.80]; slow 1.40 [1.27, 1.56] |" in report.markdown([outcome], (1,), [])
    assert outcome.to_json()["reference"]["1"]["name"] == "slow"
    named = {c.name for group in GROUPS for c in cases(group)} | {*ZOO_NAMES, *BATCHES}
    named |= {name for name in MUST_HOLD if name.endswith("_bf16")}  # only where the machine has bfloat16
    assert set(MUST_BEST) <= named
    assert set(MUST_HOLD) <= named
    assert set(HIGHLIGHTS) <= named


@pytest.mark.parametrize("failure", [WorkerDied, WorkerRefused])
def test_a_peer_that_fails_while_it_is_timed_is_left_out_and_named(failure: type[WorkerDied | WorkerRefused],
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _with_peers()
    outcome.benches.clear()
    asked: list[list[str]] = []

    def bench(peers: list[Peer], **options: object) -> BenchResult:
        asked.append([p.name for p in peers])
        bad = [p for p in peers if p.name == "slow"]
        if bad:
            raise failure("gone", bad[0])
        return _bench(2.0, 1.9, 2.1)

    monkeypatch.setattr(pipeline, "bench", bench)
    both = [Peer("original", Path()), Peer("ours", Path())]
    pipeline._time(outcome, both, {}, 2, 7, False)
    assert asked == [["original", "ours", "slow", "openvino"], ["original", "ours", "openvino"]]
    assert next(r.reason for r in outcome.rivals if r.name == "slow") == "failed at 2 thread(s): gone"
    assert list(outcome.benches) == [2]

    def broken(peers: list[Peer], **options: object) -> BenchResult:
        raise failure("the original", peers[0])

    monkeypatch.setattr(pipeline, "bench", broken)
    with pytest.raises(failure, match="the original"):
        pipeline._time(outcome, both, {}, 2, 7, False)


def test_peers_that_took_no_part_are_listed_with_the_reason() -> None:
    found = [Found(KINDS["openvino"], "/p", (("openvino", "1"),)), Found(KINDS["torch-sdpa"], absent="no torch")]
    assert report.peer_lines(found, [_with_peers()]) == [
        "peer openvino (openvino 1)", "peer torch-sdpa: absent, no torch",
        "m: peer onnxsim: wrong answers: output 0 is off"]


@pytest.mark.parametrize("name", [report.BENCH, report.PEERS])
def test_a_block_is_replaced_and_nothing_else(name: str) -> None:
    text = f"before\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\nafter\n"
    assert report.between_markers(text, "new", name) == text.replace("old", "new")
    with pytest.raises(ValueError, match=f"{name}:end"):
        report.between_markers(f"no end <!-- {name}:begin -->", "new", name)
    for page in (suite.README, suite.MEASUREMENTS):
        text = page.read_text(encoding="utf-8")
        assert report.between_markers(text, "x", name) != text


def test_the_readme_has_the_highlights_and_names_what_is_no_pass() -> None:
    good, wrong = _outcomes()
    good.case = replace(good.case, name=HIGHLIGHTS[1])
    first = replace(good, case=replace(good.case, name=HIGHLIGHTS[0]))
    block = report.brief([good, wrong, first], (1,))
    rows = [row for row in block.splitlines() if row.startswith("|")]
    assert [row.split("|")[1].strip() for row in rows[2:]] == list(HIGHLIGHTS[:2])
    assert len({row.count("|") for row in rows}) == 1
    assert "All 3 cases" in block
    assert "Not a pass: m (wrong)." in block


def test_the_readme_says_which_case_is_behind_the_best_peer() -> None:
    def outcome(required: float | None) -> Outcome:
        return replace(_with_peers(), case=replace(_case("zoo"), name=HIGHLIGHTS[0], must_best=required))

    block = report.brief_peers([outcome(0.9)], (1,))
    assert f"| {HIGHLIGHTS[0]} | openvino 0.80 [0.80, 0.80] | ≥ 0.9 |" in block
    assert block.endswith(f"Less than required: {HIGHLIGHTS[0]}.")
    assert report.brief_peers([outcome(0.7)], (1,)).endswith("All reach what is required.")
    assert "| - |" in report.brief_peers([outcome(None)], (1,))


def test_models_are_timed_without_padding_and_verified_with_it() -> None:
    case = next(c for c in cases("built") if c.name == "bert_128")
    masks = [fed["attention_mask"] for fed in case.others()]
    assert case.feeds()["attention_mask"].all()
    assert any(not mask.all() for mask in masks)


def test_required_cases_that_lose_by_a_second_thread_are_named() -> None:
    def outcome(name: str, two: float) -> Outcome:
        return Outcome(replace(_case("zoo", 1.2), name=name), benches={1: _bench(2.0, 1.9, 2.1),
                                                                      2: _bench(two, two, two, threads=2)})

    assert report.scaling_lines([outcome("a", 1.91), outcome("b", 1.8)]) == [
        "ratio at 2 threads of at least 0.95 of that at 1: 1 of 2; less: b 0.90"]
    assert report.scaling_lines(_outcomes()) == []


def test_overhead_lines_give_the_verdict() -> None:
    lines = report.overhead_lines([Overhead(0, 40, LIMIT_S, 1e-6, 1.3e-6), Overhead(30, 40, 2e-6, 1.9e-6, 2.1e-6)])
    assert lines[0].endswith("pass")
    assert lines[1].endswith("short")
    assert "30 constant inputs: 2.00 µs" in lines[1]


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for bad in (["--threads", "0"], ["--threads", "a"], ["--only", "everything"]):
        with pytest.raises(SystemExit) as caught:
            suite.main(bad)
        assert caught.value.code == 2
    assert "not a list of thread counts" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no peer nothing"):
        suite.main(["--peers", "nothing"])
    with pytest.raises(SystemExit, match="no case nothing"):
        suite.main(["--case", "nothing", "--only", "chains"])
