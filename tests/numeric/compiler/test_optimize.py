"""`optimize` from end to end: served answers, options, caching, and what is left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.numeric.compiler.served import (
    BRANCHES,
    LOOP,
    THREE_KERNELS,
    TWO_KERNELS,
    layers,
    normal,
    plain,
    reference,
    same,
    served,
    tree,
)
from tests.unit.fusion.parse import proto
from tilegraph.codegen.kernels import KernelStore
from tilegraph.compiler import driver, list_passes, optimize
from tilegraph.errors import InputError, UsageError
from tilegraph.graph import all_graphs
from tilegraph.spec.artifact import EP_NAME


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel cache that starts empty."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[KernelStore]:
    """The kernel stores that `optimize` makes, in order."""
    made: list[KernelStore] = []

    class Recorded(KernelStore):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(driver, "KernelStore", Recorded)
    return made


def contexts(model: ir.Model) -> list[ir.Node]:
    return [n for g in all_graphs(model.graph) for n in g if n.op_type == "EPContext"]


@pytest.mark.parametrize("offload", ["all", "auto", "none"])
def test_answers_are_those_of_the_original_at_every_size(offload: str, cache: Path) -> None:
    model = layers(2)
    made = optimize(model, offload=offload, cache_dir=cache)
    assert bool(contexts(made.model)) == (offload != "none") or offload == "auto"
    session = made.session(2)
    for n in (1, 3, 0, 7):
        feeds = {"x": normal(n, 8, 16)}
        same(session.run(None, feeds), reference(model, feeds))


def test_offload_all_takes_every_node_but_the_products(cache: Path) -> None:
    made = optimize(layers(2), offload="all", disable=["fuse-gemm"], cache_dir=cache)
    assert made.summary.engines == {EP_NAME: 2, "onnxruntime": 2}
    assert sorted(n.op_type for n in made.model.graph) == ["EPContext", "EPContext", "MatMul", "MatMul"]
    assert {r["op"] for r in made.summary.refusals} >= {"MatMul"}


def test_equal_layers_are_compiled_once_and_then_never_again(tmp_path: Path, stores: list[KernelStore]) -> None:
    made = optimize(layers(3), offload="all", disable=["fuse-gemm"], cache_dir=tmp_path)
    assert made.manifest is not None
    assert len(made.manifest.programs) == 3
    symbols = {c.symbol for p in made.manifest.programs.values() for c in p.calls}
    assert (stores[0].compiled, len(symbols), len(stores[0].objects)) == (1, 1, 1)
    again = optimize(layers(3), offload="all", disable=["fuse-gemm"], cache_dir=tmp_path)
    assert stores[1].compiled == 0
    feeds = {"x": normal(2, 8, 16)}
    same(served(again, feeds), reference(layers(3), feeds))


def test_the_same_model_gives_the_same_folder(tmp_path: Path, cache: Path) -> None:
    first = optimize(layers(2), offload="all", cache_dir=cache).save(tmp_path / "a.tilegraph", portable=True)
    second = optimize(layers(2), offload="all", cache_dir=tmp_path / "other").save(tmp_path / "b.tilegraph",
                                                                                   portable=True)
    assert tree(first) == tree(second)
    assert set(tree(first)) >= {"model.onnx", "manifest.json", "kernels.cpu.so", "portable.onnx"}


@pytest.mark.parametrize("c", [True, False])
def test_bodies_of_if_with_captured_values(c: bool, cache: Path) -> None:
    model = proto(BRANCHES, 18)
    made = optimize(model, offload="all", cache_dir=cache)
    assert len(contexts(made.model)) == 4  # before, after, and one in each branch
    for n in (1, 5):
        feeds = {"x": normal(n, 16), "c": np.array(c)}
        same(served(made, feeds), reference(model, feeds))
        same(plain(made.portable, feeds), reference(model, feeds))


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_bodies_of_loop(trips: int, cache: Path) -> None:
    model = proto(LOOP, 18)
    made = optimize(model, offload="all", cache_dir=cache)
    assert any(n.op_type == "EPContext" for g in all_graphs(made.model.graph) if g.name == "b" for n in g)
    feeds = {"x": normal(3, 16), "n": np.array(trips)}
    same(served(made, feeds), reference(model, feeds))


@pytest.mark.parametrize(("text", "kernels"), [(TWO_KERNELS, 2), (THREE_KERNELS, 3)])
def test_kernels_of_one_partition_share_an_arena(text: str, kernels: int, cache: Path) -> None:
    model = proto(text, 18)
    made = optimize(model, offload="all", cache_dir=cache)
    assert made.manifest is not None
    (program,) = made.manifest.programs.values()
    assert len(program.calls) == kernels
    assert program.arena_bytes.evaluate({"N": 3}) >= 3 * 128 * 4
    assert any(slot.kind == "arena" for call in program.calls for slot in call.args)
    session = made.session(2)
    for n in (1, 4, 9, 0):
        feeds = {"x": normal(n, 8, 16)}
        same(session.run(None, feeds), reference(model, feeds))


def test_the_portable_model_runs_on_plain_onnx_runtime(tmp_path: Path, cache: Path) -> None:
    model = layers(2)
    feeds = {"x": normal(2, 8, 16)}
    folder = optimize(model, offload="all", cache_dir=cache).save(tmp_path / "m.tilegraph", portable=True)
    loaded = onnx.load(folder / "portable.onnx")
    assert any(f.domain == "ai.tilegraph" for f in loaded.functions)
    same(reference(loaded, feeds), reference(model, feeds))


def test_frozen_dims_are_numbers_in_the_result(cache: Path) -> None:
    model = layers(1)
    made = optimize(model, offload="all", dims={"N": 2}, cache_dir=cache)
    assert list(made.model.graph.inputs[0].shape or ()) == [2, 8, 16]
    assert made.manifest is not None
    assert all(d.is_static for p in made.manifest.programs.values() for t in p.inputs for d in t.shape)
    feeds = {"x": normal(2, 8, 16)}
    same(served(made, feeds), reference(model, feeds))


def test_another_cpu_is_compiled_for_by_its_name(cache: Path) -> None:
    model = layers(1)
    made = optimize(model, offload="all", mcpu="haswell", cache_dir=cache)
    assert made.manifest is not None
    assert (made.manifest.library.isa, made.manifest.library.features) == ("x86-64-v3", ())
    feeds = {"x": normal(2, 8, 16)}
    same(served(made, feeds), reference(model, feeds))


def test_a_dry_run_decides_and_compiles_nothing(tmp_path: Path, stores: list[KernelStore]) -> None:
    dry = optimize(layers(2), offload="all", disable=["fuse-gemm"], dry_run=True, cache_dir=tmp_path / "cache")
    real = optimize(layers(2), offload="all", disable=["fuse-gemm"], cache_dir=tmp_path / "cache")
    assert stores[0].compiled == 0
    assert (dry.summary.regions, dry.summary.partitions) == (real.summary.regions, real.summary.partitions) == (2, 2)
    assert dry.summary.nodes_after == real.summary.nodes_after
    with pytest.raises(UsageError, match="dry run"):
        dry.save(tmp_path / "m.tilegraph")
    assert not (tmp_path / "m.tilegraph").exists()


@pytest.mark.parametrize("name", list_passes())
def test_any_pass_may_be_disabled(name: str, cache: Path) -> None:
    model = layers(1)
    made = optimize(model, offload="all", disable=[name], cache_dir=cache)
    assert ("pass", name) in {(d.stage, d.subject) for d in made.diagnostics if not d.taken}
    needed = ("shapes",)  # without these nothing is offloaded
    assert bool(contexts(made.model)) == (name not in needed)
    feeds = {"x": normal(2, 8, 16)}
    same(served(made, feeds), reference(model, feeds))


def test_what_is_passed_in_is_left_alone(tmp_path: Path, cache: Path) -> None:
    model = layers(2)
    before = model.SerializeToString(deterministic=True)
    optimize(model, offload="all", cache_dir=cache).save(tmp_path / "a.tilegraph")
    assert model.SerializeToString(deterministic=True) == before
    loaded = ir.from_proto(model)
    tensors = [n.attributes["value"].as_tensor() for n in loaded.graph if n.op_type == "Constant"]
    named = [t.name for t in tensors]
    text = ir.to_proto(loaded).SerializeToString(deterministic=True)
    optimize(loaded, offload="all", cache_dir=cache).save(tmp_path / "b.tilegraph")
    assert ir.to_proto(loaded).SerializeToString(deterministic=True) == text
    assert [t.name for t in tensors] == named
    path = tmp_path / "model.onnx"
    path.write_bytes(before)
    optimize(path, offload="all", cache_dir=cache).save(tmp_path / "c.tilegraph")
    assert path.read_bytes() == before
    assert tree(tmp_path / "a.tilegraph")["kernels.cpu.so"] == tree(tmp_path / "c.tilegraph")["kernels.cpu.so"]


@pytest.mark.parametrize(("options", "message"), [
    ({"target": "gpu"}, "unknown target 'gpu'"),
    ({"offload": "most"}, "choose one of all|choose one of auto"),
    ({"disable": ["no-such-pass"]}, "no pass named no-such-pass"),
    ({"dims": {"Q": 4}}, "Q"),
    ({"mcpu": "pentium"}, "unknown CPU"),
])
def test_bad_options_say_what_to_do(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        optimize(layers(1), **options)  # type: ignore[arg-type]
    assert raised.value.exit_code == 2


def test_errors_leave_nothing_behind(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("mine")
    made = optimize(layers(1), offload="all", cache_dir=cache)
    with pytest.raises(InputError):
        made.save(foreign)
    with pytest.raises(InputError):
        made.save(foreign / "letter.txt" / "m.tilegraph")
    with pytest.raises(InputError):
        optimize(b"not a model", cache_dir=cache)
    assert tree(foreign) == {"letter.txt": b"mine"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["foreign", "tmp"]
    assert list(scratch.iterdir()) == []


def test_no_compiler_is_an_error_of_the_machine(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="no-such-compiler: no such program"):
        optimize(layers(1), offload="all", cache_dir=cache)


def test_stages_are_reported_and_timed(cache: Path) -> None:
    told: list[str] = []
    made = optimize(layers(1), offload="all", cache_dir=cache, progress=told.append)
    assert told == ["load", "passes", "partition", "codegen", "link", "emit"]
    assert set(told) <= set(made.summary.seconds)
    assert set(list_passes()) <= set(made.summary.seconds)


def test_dumps_hold_the_model_after_each_pass_and_the_kernels(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "dump"
    made = optimize(layers(1), offload="all", cache_dir=cache, dump=folder)
    assert made.manifest is not None
    names = [p.name for p in folder.iterdir()]
    symbols = {c.symbol for p in made.manifest.programs.values() for c in p.calls}
    assert {f"{s}.py" for s in symbols} <= set(names)
    passes = {p.stem.partition("-")[2] for p in folder.glob("*.onnx")}
    assert {"lift-constants", "shapes", "fuse-regions"} <= passes <= set(list_passes())
    onnx.load(folder / next(n for n in names if n.endswith("fuse-regions.onnx")))
