"""Outcomes as a table on the terminal, as docs/measurements.md and as the README's short table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from models.overhead import LIMIT_S, Overhead
from models.peak import peak
from models.pipeline import FIRST, OURS, Outcome
from models.required import HELD_BY_TWO, HIGHLIGHTS
from tilegraph.bench.kinds import Found
from tilegraph.bench.table import megabytes, ratio, seconds

BENCH, PEERS = "bench", "peers"  # the blocks of the documents
REFERENCE = ("Where a second peer follows, it is the best of those that the required ratio counts: for attentions, "
             "what is made for them.")
_STYLE = {"pass": "green", "short": "yellow", "skipped": "cyan", "wrong": "red", "failed": "red"}


def _required(outcome: Outcome) -> str:
    return f"≥ {outcome.case.must_hold:g}" if outcome.case.must_hold is not None else "not slower"


def _best(outcome: Outcome, threads: int) -> str:
    """The best peer's name, and its time / ours; and that of the best of those that the required ratio counts, where it
    is another one."""
    found = dict.fromkeys(x for x in (outcome.best_peer(threads), outcome.reference(threads)) if x is not None)
    return "; ".join(f"{name} {r.median:.2f} [{r.low:.2f}, {r.high:.2f}]" for name, r in found) or "-"


def _peers(outcomes: Sequence[Outcome]) -> bool:
    """Whether there is anything to say about peers other than ONNX Runtime on the original."""
    return any(o.rivals for o in outcomes)


def _cells(outcome: Outcome, threads: Sequence[int], peers: bool) -> list[str]:
    """One row: name, inputs, ratios, best peers, what is required, times, sessions, memory, optimize, verdict."""
    ratios = [ratio(outcome.benches[t].models[OURS]) if t in outcome.benches else "-" for t in threads]
    times, create, peak = ["-"] * 3
    if outcome.benches:
        models = next(iter(outcome.benches.values())).models
        original, ours = models[FIRST], models[OURS]
        times = f"{seconds(original.median_s)} → {seconds(ours.median_s)}"
        create = f"{seconds(original.create_s)} → {seconds(ours.create_s)}"
        peak = f"{megabytes(original.peak_bytes)} → {megabytes(ours.peak_bytes)}"
    same = {True: "same", False: "differ", None: "-"}[outcome.same]
    ratios += [_best(outcome, t) for t in threads] if peers else []
    return [outcome.case.name, outcome.inputs, *ratios, _required(outcome), times, create, peak,
            seconds(outcome.optimize_s) if outcome.optimize_s else "-", same, outcome.verdict]


def _headings(threads: Sequence[int], peers: bool) -> list[str]:
    counts = [f"{t} thread{'s' if t > 1 else ''}" for t in threads]
    best = [f"best peer, {count}" for count in counts] if peers else []
    return ["model", "input", *(f"ratio, {count}" for count in counts), *best, "required", "time",
            "session", "peak memory", "optimize", "answers", ""]


def header(outcomes: Sequence[Outcome]) -> str:
    """The machine, from the first measurement."""
    for outcome in outcomes:
        for result in outcome.benches.values():
            v = result.versions
            return f"{v['cpu']}, onnxruntime {v['onnxruntime']}, tilegraph {v['tilegraph']}, python {v['python']}"
    return "nothing was measured"


def terminal(outcomes: Sequence[Outcome], threads: Sequence[int], title: str) -> Table:
    t = Table(title=f"{title}: {header(outcomes)}", title_justify="left", caption_justify="left",
              caption="ratio: ONNX Runtime (all optimizations, original model) / tilegraph, median of rounds and its "
                      "95% interval; best peer: the fastest of ONNX Runtime and the others, its time / tilegraph's; "
                      "time, session and memory: original → optimized")
    peers = _peers(outcomes)
    for heading in _headings(threads, peers):
        t.add_column(heading, justify="left" if heading in ("model", "", "answers") else "right")
    for outcome in outcomes:
        *cells, verdict = _cells(outcome, threads, peers)
        t.add_row(*cells, f"[{_STYLE[verdict]}]{verdict}[/]")
    return t


def overhead_lines(found: Sequence[Overhead]) -> list[str]:
    return [f"a plugin node with {o.constants} constant inputs: {o.seconds * 1e6:.2f} µs [{o.low * 1e6:.2f}, "
            f"{o.high * 1e6:.2f}], {LIMIT_S * 1e6:.1f} allowed: {o.verdict}" for o in found]


def product_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The share of the machine's peak that a run of each model with products reaches, at one thread."""
    lines = []
    for outcome in outcomes:
        if 1 in outcome.benches and outcome.flop > 0 and peak():
            taken = outcome.benches[1].models[OURS].median_s
            lines.append(f"{outcome.case.name}: {outcome.flop / 1e9:.3g} GFLOP in products, a run of {seconds(taken)}: "
                         f"{outcome.flop / taken / peak():.2f} of the peak of {peak() / 1e9:.0f} GFLOP/s")
    return lines


def peer_lines(found: Sequence[Found], outcomes: Sequence[Outcome]) -> list[str]:
    """Which peers took part, which are absent, and which could not be timed on a model, with the reason."""
    lines = [f"peer {one}" for one in found]
    for outcome in outcomes:
        for rival in outcome.rivals:
            if rival.reason and not rival.reason.startswith("absent"):
                lines.append(f"{outcome.case.name}: peer {rival.name}: {' '.join(rival.reason.split())[:300]}")
    return lines


def skip_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The cases for which there was too little memory."""
    return [f"{o.case.name}: skipped: {'; '.join(o.problems)}" for o in outcomes if o.verdict == "skipped"]


def scaling_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """How many of the cases with a required ratio keep it at two threads, and which do not."""
    both = [(o, *(o.benches[t].models[OURS].ratio for t in (1, 2))) for o in outcomes
            if o.case.must_hold is not None and {1, 2} <= set(o.benches)]
    if not both:
        return []
    less = [f"{o.case.name} {two / one:.2f}" for o, one, two in both if two < HELD_BY_TWO * one]
    return [f"ratio at 2 threads of at least {HELD_BY_TWO} of that at 1: {len(both) - len(less)} of {len(both)}"
            + (f"; less: {', '.join(less)}" if less else "")]


def _intro(outcomes: Sequence[Outcome]) -> str:
    counts = ", ".join(f"{n} {verdict}" for verdict in _STYLE
                       if (n := sum(o.verdict == verdict for o in outcomes)))
    intro = (f"{header(outcomes)}. Ratio: ONNX Runtime's time on the original (all optimizations) / tilegraph's, "
             f"median of paired rounds and its 95% interval. Time, session, memory: original → optimized. {counts}.")
    if _peers(outcomes):
        intro += (" Best peer: the fastest of ONNX Runtime on the original and the peers below, and its time"
                  f" / tilegraph's. {REFERENCE}")
    return intro


def _rows(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the heading."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def markdown(outcomes: Sequence[Outcome], threads: Sequence[int], lines: Sequence[str]) -> str:
    """Every case, and `lines`: the block of docs/measurements.md, without the markers."""
    peers = _peers(outcomes)
    table = _rows([_headings(threads, peers), *(_cells(o, threads, peers) for o in outcomes)])
    parts = [_intro(outcomes), table] if outcomes else []
    return "\n\n".join([*parts, *(["\n".join(f"- {x}" for x in lines)] if lines else [])])


def _chosen(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return sorted((o for o in outcomes if o.case.name in HIGHLIGHTS), key=lambda o: HIGHLIGHTS.index(o.case.name))


def _rest(outcomes: Sequence[Outcome]) -> str:
    rest = [f"{o.case.name} ({o.verdict})" for o in outcomes if o.verdict != "pass"]
    return (f"All {len(outcomes)} cases: [docs/measurements.md](docs/measurements.md). "
            + (f"Not a pass: {', '.join(rest)}." if rest else "All pass."))


def brief(outcomes: Sequence[Outcome], threads: Sequence[int]) -> str:
    """The README's block of a run without peers: the highlights, and the name of every case that is not a pass."""
    ratios = 2 + len(threads)
    keep = [*range(ratios), ratios, ratios + 1, -2, -1]  # what is required, the time, the answers, the verdict
    rows = [[row[i] for i in keep] for row in (_headings(threads, False),
                                               *(_cells(o, threads, False) for o in _chosen(outcomes)))]
    return "\n\n".join([_intro(outcomes), _rows(rows), _rest(outcomes)])


def brief_peers(outcomes: Sequence[Outcome], threads: Sequence[int]) -> str:
    """The README's block of a run with peers: the ratio to the best of them beside what is required."""
    count = threads[0]
    rows = [["model", f"ratio to the best peer, {count} thread{'s' if count > 1 else ''}", "required"]]
    rows += [[o.case.name, _best(o, count), "-" if o.case.must_best is None else f"≥ {o.case.must_best:g}"]
             for o in _chosen(outcomes)]
    less = [o.case.name for o in outcomes
            if o.case.must_best is not None and (best := o.reference(count)) and best[1].median < o.case.must_best]
    return "\n\n".join([f"{header(outcomes)}. The fastest of ONNX Runtime on the original and all peers, and its time "
                        f"/ tilegraph's, median of paired rounds and its 95% interval. {REFERENCE}", _rows(rows),
                        f"Less than required: {', '.join(less)}." if less else "All reach what is required."])


def between_markers(text: str, block: str, name: str = BENCH) -> str:
    """`text` with what is between the markers of `name` replaced; `ValueError` without the markers."""
    begin, end = (f"<!-- {name}:{place} -->" for place in ("begin", "end"))
    if begin not in text or end not in text:
        raise ValueError(f"the text lacks {begin} or {end}")
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"
