"""What the sweep runs: the corpus, the zoo, the built models, the chains, ONNX's own node tests and its other sets.

A case is named by group and name; its model file and inputs are found or made in the process that runs it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.conformance.backend_sets import SETS, names, open_set

ROOT = Path(__file__).resolve().parents[2]
NODES = ROOT / "build" / "conformance" / f"nodes-{onnx.__version__}-weights"
WEIGHTED = frozenset((
    "Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "Gemm", "MatMul", "MatMulInteger",
    "QLinearMatMul", "Einsum", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "LayerNormalization", "RMSNormalization", "GRU", "LSTM", "RNN", "PRelu", "QuantizeLinear", "DequantizeLinear",
    "Gather"))
GROUPS = ("chains", "built", "zoo", "corpus", "node", *SETS)

Feeds = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`limit` is in seconds, for everything that is done with the model."""

    group: str
    name: str
    limit: float = 90.0

    @property
    def label(self) -> str:
        return f"{self.group}/{self.name}"


def cases(groups: tuple[str, ...] = GROUPS) -> list[Case]:
    """Every case that this machine has, in a fixed order."""
    found: list[Case] = []
    for group in groups:
        if group in SETS:
            found += [Case(group, name, 300.0 if group == "light" else 60.0) for name in names(group)]
        else:
            found += {"chains": _chains, "built": _built, "zoo": _zoo, "corpus": _corpus, "node": _nodes}[group]()
    return found


def open_case(case: Case) -> tuple[Path, list[Feeds]]:
    """The model's file and one or more sets of inputs."""
    if case.group in SETS:
        return open_set(case.group, case.name)
    return {"chains": _open_chain, "built": _open_built, "zoo": _open_zoo, "corpus": _open_corpus,
            "node": _open_node}[case.group](case.name)


# -- chains and built models ------------------------------------------------------------------------------------
def _chains() -> list[Case]:
    from models.chains import chains

    return [Case("chains", f"{c.name}-{size}") for size in ("small", "full") for c in chains()]


def _open_chain(name: str) -> tuple[Path, list[Feeds]]:
    from models.chains import chains

    which, _, size = name.rpartition("-")
    chain = next(c for c in chains() if c.name == which)
    small = size == "small"
    return chain.path(small=small), [chain.inputs(small=small)]


def _built() -> list[Case]:
    from models import builders

    return [Case("built", f"{name}-{size}-{form}", 90.0 if size == "small" else 300.0)
            for size in ("small", "full") for name in builders.names() for form in ("static", "dynamic")]


def _open_built(name: str) -> tuple[Path, list[Feeds]]:
    from models import builders
    from models.inputs import inputs_for

    which, size, form = name.rsplit("-", 2)
    path = builders.path(which, size=size, dynamic=form == "dynamic")
    if form == "static":
        return path, [inputs_for(path)]
    example = dict(builders.builder(which).example)
    other = {k: 1 if k == "batch" else v + 6 for k, v in example.items()}
    return path, [inputs_for(path, dims=example), inputs_for(path, seed=1, dims=other)]


# -- real models ------------------------------------------------------------------------------------------------
def _zoo() -> list[Case]:
    from models.zoo import survey

    return [Case("zoo", m.name, 180.0) for m in survey()[0]]


def _open_zoo(name: str) -> tuple[Path, list[Feeds]]:
    from models.cases import cases as bench_cases

    case = next(c for c in bench_cases("zoo") if c.name == name)
    return case.path(), [case.feeds(), *case.others()]


def corpus_folder() -> Path | None:
    from tests.conftest import ARCHIVE, unpack_corpus

    return unpack_corpus() if ARCHIVE.is_file() else None


def _corpus() -> list[Case]:
    folder = corpus_folder()
    return [] if folder is None else [Case("corpus", p.stem) for p in sorted(folder.glob("*.onnx"))]


def _open_corpus(name: str) -> tuple[Path, list[Feeds]]:
    folder = corpus_folder()
    assert folder is not None
    return folder / f"{name}.onnx", feeds_of(folder / f"{name}.npz")


def feeds_of(path: Path) -> list[Feeds]:
    """The sets of inputs in a file of arrays: in_NAME, and where there is a second set, alt_in_NAME."""
    feeds: list[Feeds] = []
    with np.load(path, allow_pickle=False) as arrays:
        for prefix in ("in_", "alt_in_"):
            given = {k[len(prefix):]: arrays[k] for k in arrays.files if k.startswith(prefix)}
            if given:
                feeds.append(given)
    return feeds


# -- node tests -------------------------------------------------------------------------------------------------
def _nodes() -> list[Case]:
    return [Case("node", p.name, 60.0) for p in sorted(write_node_tests().iterdir())]


def _open_node(name: str) -> tuple[Path, list[Feeds]]:
    folder = write_node_tests() / name
    with open(folder / "feeds.pickle", "rb") as stream:
        feeds: list[Feeds] = pickle.load(stream)
    return folder / "model.onnx", feeds


def write_node_tests() -> Path:
    """ONNX's node tests as files, written once: each as it is, "@const" with its small integer inputs as constants (as
    exporters write axes and shapes), "@weights" with all inputs of an operator that has weights but the first as
    constants, and "@dyn" with its extents as symbols (equal extents get equal symbols)."""
    if NODES.is_dir():
        return NODES
    from onnx.backend.test.case.node import collect_testcases

    NODES.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="nodes-", dir=NODES.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    for test in tests:
        inputs = [i.name for i in test.model.graph.input]
        # Some of the inputs are numpy's scalars.
        feeds = [{k: np.asarray(v) if isinstance(v, np.generic) else v for k, v in zip(inputs, given, strict=False)}
                 for given, _ in test.data_sets]
        forms = {"": (test.model, feeds)}
        fixed = _constants(test.model, feeds)
        if fixed is not None:
            forms["@const"] = fixed
        weights = _weights(test.model, feeds)
        if weights is not None:
            forms["@weights"] = weights
        base, given = fixed or (test.model, feeds)
        symbolic = _symbolic(base, given)
        if symbolic is not None:
            forms["@dyn"] = (symbolic, given)
        for suffix, (model, sets) in forms.items():
            folder = scratch / f"{test.name.removeprefix('test_')}{suffix}"
            folder.mkdir()
            (folder / "model.onnx").write_bytes(model.SerializeToString())
            (folder / "feeds.pickle").write_bytes(pickle.dumps(sets))
    try:
        os.rename(scratch, NODES)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if not NODES.is_dir():  # anything but another process having been first
            raise
    return NODES


def _constants(model: onnx.ModelProto, feeds: list[Feeds]) -> tuple[onnx.ModelProto, list[Feeds]] | None:
    """Integer vectors and scalars of at most 32 elements behind the first input become initializers; None if there are
    none."""
    small = {k for k, v in list(feeds[0].items())[1:] if isinstance(v, np.ndarray) and v.dtype in (np.int64, np.int32)
             and v.ndim <= 1 and v.size <= 32}
    return _fixed(model, feeds, small)


def _weights(model: onnx.ModelProto, feeds: list[Feeds]) -> tuple[onnx.ModelProto, list[Feeds]] | None:
    """All arrays behind the first become initializers where the only node is one that has weights."""
    if [n.op_type in WEIGHTED for n in model.graph.node] != [True]:
        return None
    return _fixed(model, feeds, {k for k, v in list(feeds[0].items())[1:] if isinstance(v, np.ndarray)})


def _fixed(model: onnx.ModelProto, feeds: list[Feeds], names: set[str]) -> tuple[onnx.ModelProto, list[Feeds]] | None:
    if len(feeds) != 1 or not names:
        return None
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    kept = [i for i in fixed.graph.input if i.name not in names]
    del fixed.graph.input[:]
    fixed.graph.input.extend(kept)
    fixed.graph.initializer.extend(numpy_helper.from_array(feeds[0][k], k) for k in sorted(names))
    return fixed, [{k: v for k, v in feeds[0].items() if k not in names}]


def _symbolic(model: onnx.ModelProto, feeds: list[Feeds]) -> onnx.ModelProto | None:
    """Every input extent above 1 becomes a symbol; None where no input has one."""
    found = False
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if not isinstance(feeds[0].get(value.name), np.ndarray) or not value.type.HasField("tensor_type"):
            continue
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"n{dim.dim_value}"
                found = True
    for value in copy.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return copy if found else None
