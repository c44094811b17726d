"""Saving: aligned external data, streaming, identical bytes, whole files or none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from io_models import parse, with_weights
from onnx import numpy_helper

from tilegraph.errors import EnvironmentProblem, InputError
from tilegraph.io import ALIGNMENT, load, save, write_data


def many_weights() -> onnx.ModelProto:
    """Weights of odd sizes, some small, one in a subgraph."""
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[7] x, bool c) => (float[7] y) {
            a = Add(x, w0)  b = Add(a, w1)  d = Gather(w2, i)  e = Add(b, d)
            y = If (c) <then_branch = t () => (float[7] r) { q = Gather(inner, i) r = Add(e, q) },
                        else_branch = f () => (float[7] s) { s = Neg(e) }>
        }""")
    rng = np.random.default_rng(0)
    arrays = {"w0": rng.random(7, np.float32), "w1": rng.random(7, np.float32), "w2": rng.random((999, 7), np.float32),
              "i": np.array(3)}
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    branch = proto.graph.node[4].attribute[0].g
    branch.initializer.append(numpy_helper.from_array(rng.random((501, 7), np.float32), "inner"))
    return proto


def external_of(proto: onnx.ModelProto) -> dict[str, dict[str, str]]:
    graphs = [proto.graph, *(a.g for n in proto.graph.node for a in n.attribute if a.HasField("g"))]
    return {t.name: {e.key: e.value for e in t.external_data}
            for g in graphs for t in g.initializer if t.data_location == onnx.TensorProto.EXTERNAL}


def test_large_tensors_go_out_aligned_small_ones_stay(tmp_path: Path) -> None:
    written = save(load(many_weights()), tmp_path / "m.onnx", inline_limit=1024)
    assert written == [tmp_path / "m.onnx", tmp_path / "m.onnx.data"]
    proto = onnx.load(str(tmp_path / "m.onnx"), load_external_data=False)
    external = external_of(proto)
    assert set(external) == {"w2", "inner"}
    for entry in external.values():
        assert entry["location"] == "m.onnx.data"
        assert int(entry["offset"]) % ALIGNMENT == 0
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_no_data_file_without_a_large_tensor(tmp_path: Path) -> None:
    assert len(save(load(many_weights()), tmp_path / "m.onnx")) == 2
    assert set(external_of(onnx.load(str(tmp_path / "m.onnx"), load_external_data=False))) == {"w2"}  # of 28 KB
    proto = many_weights()
    proto.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.zeros((500, 7), np.float32), "w2"))
    assert save(load(proto), tmp_path / "n.onnx") == [tmp_path / "n.onnx"]


def test_small_mapped_tensors_move_into_the_model(tmp_path: Path) -> None:
    """A weight that was external and is small must not go on pointing at the file that it came from."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    save(load(many_weights()), source / "m.onnx", inline_limit=1)
    model = load(source / "m.onnx")
    save(model, target / "n.onnx", inline_limit=1024)
    proto = onnx.load(str(target / "n.onnx"), load_external_data=False)
    assert {name: entry["location"] for name, entry in external_of(proto).items()} == {
        "w2": "n.onnx.data", "inner": "n.onnx.data"}
    kept = {v.name for g in model.graphs() for v in g.initializers.values()
            if isinstance(v.const_value, ir.ExternalTensor)}
    assert {"w0", "w1", "i"} <= kept  # the model itself stays as it was
    for file in source.iterdir():
        file.unlink()
    again = onnx.load(str(target / "n.onnx"))
    expected = {t.name: numpy_helper.to_array(t) for t in many_weights().graph.initializer}
    for tensor in again.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected[tensor.name])


def test_round_trip_keeps_every_tensor(tmp_path: Path) -> None:
    model = load(many_weights())
    save(model, tmp_path / "m.onnx", inline_limit=0)
    again = load(tmp_path / "m.onnx")
    before = {v.name: v.const_value for g in model.graphs() for v in g.initializers.values()}
    after = {v.name: v.const_value for g in again.graphs() for v in g.initializers.values()}
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(tensor.numpy(), after[name].numpy())  # type: ignore[union-attr]
        assert isinstance(after[name], ir.ExternalTensor)
        assert not isinstance(tensor, ir.ExternalTensor)  # saving left the model as it was


@pytest.mark.parametrize("dtype", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4", "BOOL", "FLOAT16", "INT64"])
def test_every_kind_of_element_survives(tmp_path: Path, dtype: str) -> None:
    kind = ir.DataType[dtype]
    array = (np.arange(2049) % 2).astype(kind.numpy()).reshape(3, 683)
    value = ir.Value(name="w", const_value=ir.Tensor(array, dtype=kind, name="w"), shape=ir.Shape(array.shape),
                     type=ir.TensorType(kind))
    node = ir.node("Identity", [value], name="n")
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(kind)
    model = ir.Model(ir.Graph([], list(node.outputs), nodes=[node], initializers=[value], opset_imports={"": 23},
                              name="g"), ir_version=10)
    save(model, tmp_path / "m.onnx", inline_limit=0)
    tensor = load(tmp_path / "m.onnx").graph.initializers["w"].const_value
    assert tensor is not None
    assert tensor.dtype == kind
    np.testing.assert_array_equal(tensor.numpy().astype(np.float32), array.astype(np.float32))


def test_identical_models_give_identical_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save(load(many_weights()), tmp_path / name / "m.onnx", inline_limit=1024)
    for file in ("m.onnx", "m.onnx.data"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_saving_over_the_mapped_source(tmp_path: Path) -> None:
    path = with_weights(tmp_path)
    model = load(path)
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    before = tensor.numpy().copy()
    save(model, path, data_name="m.data")
    np.testing.assert_array_equal(tensor.numpy(), before)  # the old file lives on while it is mapped
    again = load(path).graph.initializers["w"].const_value
    np.testing.assert_array_equal(again.numpy(), before)  # type: ignore[union-attr]


def test_no_data_file_without_large_tensors(tmp_path: Path) -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"""))
    assert save(model, tmp_path / "m.onnx") == [tmp_path / "m.onnx"]
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_the_same_tensor_is_written_once(tmp_path: Path) -> None:
    tensor = ir.tensor(np.ones((10, 10), np.float32))
    other = ir.tensor(np.zeros((10, 10), np.float32))
    references = write_data([tensor, other, tensor], tmp_path / "d")
    assert [r.offset for r in references] == [0, 448, 0]
    assert (tmp_path / "d").stat().st_size == 848
    mapped = write_data([references[1], references[1]], tmp_path / "e")
    assert [r.offset for r in mapped] == [0, 0]
    np.testing.assert_array_equal(mapped[0].numpy(), other.numpy())


def test_an_unwritable_place_is_an_environment_problem(tmp_path: Path) -> None:
    model = load(many_weights())
    with pytest.raises(EnvironmentProblem, match="cannot be written") as caught:
        save(model, tmp_path / "no" / "m.onnx")
    assert caught.value.exit_code == 2


def test_nothing_is_left_or_lost_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    save(load(many_weights()), path, inline_limit=1024)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        save(load(many_weights()), path, inline_limit=1024)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_data_file_that_shrinks_while_it_is_copied(tmp_path: Path) -> None:
    path = with_weights(tmp_path)
    model = load(path)
    os.truncate(tmp_path / "m.data", 100)
    with pytest.raises(InputError, match=r"ended \d+ bytes early"):
        save(model, tmp_path / "out.onnx", inline_limit=1024)
    assert not (tmp_path / "out.onnx").exists()
