"""Loading: every kind of source, and every kind of bad input with its message."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from io_models import external_entry, parse, relu, with_weights
from onnx import helper, numpy_helper

from tilegraph.errors import InputError
from tilegraph.io import load
from tilegraph.io.walk import all_graphs
from tilegraph.passes.invariants import check_model


def refused(source: object, *parts: str) -> str:
    with pytest.raises(InputError) as caught:
        load(source)  # type: ignore[arg-type]
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert len(message.splitlines()) <= 2
    for part in parts:
        assert part in message, message
    return message


def test_each_kind_of_source_gives_the_same_model(tmp_path: Path) -> None:
    proto = relu()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    for source in (path, str(path), proto.SerializeToString(), proto, ir.from_proto(proto)):
        model = load(source)
        check_model(model)
        assert [v.name for v in model.graph.inputs] == ["x"]
        assert [n.op_type for n in model.graph] == ["Relu"]
        assert model.ir_version >= 10


def test_a_given_ir_model_is_not_changed() -> None:
    model = ir.from_proto(relu())
    load(model, dims={"batch": 2})
    assert str(model.graph.inputs[0].shape) == "[batch,seq,4]"
    assert model.ir_version == 8


def test_operators_that_only_onnx_runtime_defines() -> None:
    """Also in bodies. Its normalisations get the attribute without which it fails on them in a function."""
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 11]>
        g (float[n, 8] x, float[8] s, bool c) => (float[n, 8] y) {
          t = LayerNormalization(x, s)  u = ParametricSoftplus(t)
          y = If(c) <then_branch = a () => (float[n, 8] v) { v = SimplifiedLayerNormalization(u, s) },
                     else_branch = b () => (float[n, 8] v) { v = Neg(u) }> }"""))
    norms = [n for graph in all_graphs(model) for n in graph if n.op_type.endswith("LayerNormalization")]
    assert [n.attributes["stash_type"].as_int() for n in norms] == [1, 1]
    for op, opset in (("ThresholdedRelu", 9), ("MeanVarianceNormalization", 8)):
        load(applied(op, opset))
    refused(applied("LayerNorm", 11), "LayerNorm")


def applied(op: str, opset: int) -> onnx.ModelProto:
    return parse(f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[n] x) => (float[n] y) {{ y = {op}(x) }}""")


# -- files ------------------------------------------------------------------------------------------------
def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "gone.onnx", "gone.onnx", "no such file", "check the path")


def test_folder(tmp_path: Path) -> None:
    refused(tmp_path, str(tmp_path), "is a folder", "give the .onnx file")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    refused(tmp_path / "m.onnx", "is empty")


@pytest.mark.parametrize(("content", "reason"), [
    (b"just some text\n" * 9, "not an ONNX model"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
    (b"PK\x03\x04" + bytes(64), "zip archive"),
    (bytes(4) + b"ORTM" + bytes(64), "ORT format"),
    (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not an ONNX model"),
    (b"\x08\x08", "not an ONNX model"),
])
def test_not_onnx(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    refused(path, "m.onnx", reason)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_truncated(tmp_path: Path, part: float) -> None:
    path = with_weights(tmp_path)
    proto = onnx.load(str(path))  # weights inside
    data = proto.SerializeToString()
    path.write_bytes(data[: int(len(data) * part)])
    refused(path, "m.onnx", "truncated", "copy or download it again")


# -- external data ----------------------------------------------------------------------------------------
def test_external_data_is_mapped_not_read(tmp_path: Path) -> None:
    model = load(with_weights(tmp_path))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.raw is None  # not even mapped before somebody looks
    assert tensor.numpy()[1, 0] == np.float32(64 / 7)


def test_tensors_of_a_file_share_its_mapping(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) '
                                    "{ a = Add(x, p)  y = Add(a, q) }")
    for name, number in (("p", 1), ("q", 2)):
        proto.graph.initializer.append(numpy_helper.from_array(np.full(4, number, np.float32), name))
    onnx.save(proto, str(tmp_path / "m.onnx"), save_as_external_data=True, location="d", size_threshold=0)
    tensors = [v.const_value for v in load(tmp_path / "m.onnx").graph.initializers.values()]
    one, two = (t for t in tensors if isinstance(t, ir.ExternalTensor))
    assert (one.numpy()[0], two.numpy()[0]) == (1, 2)
    assert one.raw is two.raw
    one.release()
    assert two.numpy()[3] == 2  # the other still reads it
    assert one.numpy()[3] == 1


def test_missing_data_file(tmp_path: Path) -> None:
    path = with_weights(tmp_path)
    (tmp_path / "m.data").unlink()
    refused(path, "'m.data'", "tensor 'w'", "No such file", "beside the model")


def test_short_data_file(tmp_path: Path) -> None:
    path = with_weights(tmp_path)
    os.truncate(tmp_path / "m.data", 1000)
    refused(path, "'m.data' is too short", "'w'", "16384", "1000")


@pytest.mark.parametrize("location", ["../m.data", "sub/../../m.data", "/etc/hostname"])
def test_path_that_leaves_the_folder(tmp_path: Path, location: str) -> None:
    path = with_weights(tmp_path)
    proto = onnx.load(str(path), load_external_data=False)
    external_entry(proto, "location", location)
    path.write_bytes(proto.SerializeToString())
    refused(path, location, "outside the model's folder", "relative path")


def test_link_that_leaves_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = with_weights(folder)
    (folder / "m.data").rename(tmp_path / "elsewhere")
    (folder / "m.data").symlink_to(tmp_path / "elsewhere")
    refused(path, "is a link to", "elsewhere", "copy the data file")


def test_links_into_one_store_are_accepted(tmp_path: Path) -> None:
    """Model caches keep a flat store of files and link both the model and its data to it."""
    store, view = tmp_path / "blobs", tmp_path / "snapshot"
    store.mkdir()
    view.mkdir()
    with_weights(store)
    for name in ("m.onnx", "m.data"):
        (view / name).symlink_to(Path("..") / "blobs" / name)
    model = load(view / "m.onnx")
    assert model.graph.initializers["w"].const_value.numpy().shape == (64, 64)  # type: ignore[union-attr]


def test_hard_linked_data_is_accepted(tmp_path: Path) -> None:
    """Package installers hard-link files into place."""
    path = with_weights(tmp_path)
    os.link(tmp_path / "m.data", tmp_path / "other")
    assert load(path).graph.initializers["w"].const_value.numpy()[0, 1] > 0  # type: ignore[union-attr]


@pytest.mark.parametrize(("key", "value", "part"), [
    ("length", "100", "length 100"), ("offset", "-64", "offset -64"), ("offset", "x", "not a number"),
    ("offset", "64", "too short"),
])
def test_wrong_extent(tmp_path: Path, key: str, value: str, part: str) -> None:
    path = with_weights(tmp_path)
    proto = onnx.load(str(path), load_external_data=False)
    external_entry(proto, key, value)
    path.write_bytes(proto.SerializeToString())
    refused(path, "'w'", part)


def test_external_data_without_a_folder(tmp_path: Path) -> None:
    path = with_weights(tmp_path)
    refused(path.read_bytes(), "'m.data'", "without a folder", "give the model's path")
    refused(onnx.load(str(path), load_external_data=False), "'w'", "without a folder")


# -- the graph --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("opset", "part"), [(6, "convert it"), (29, "older opset"), (99, "7 to 28")])
def test_unknown_opsets(opset: int, part: str) -> None:
    proto = relu()
    proto.opset_import[0].version = opset
    refused(proto, f"opset {opset}", part)


def test_two_opsets_of_the_default_domain() -> None:
    proto = relu()
    proto.opset_import.add(domain="ai.onnx", version=13)
    refused(proto, "13, 17", "at once")


def test_the_long_spelling_of_the_default_domain() -> None:
    proto = relu()
    proto.opset_import[0].domain = "ai.onnx"
    model = load(proto)
    assert model.graph.opset_imports == {"": 17}


def test_no_outputs() -> None:
    proto = relu()
    del proto.graph.output[:]
    refused(proto, "no graph outputs")


def test_undefined_input() -> None:
    proto = relu()
    proto.graph.node[0].input[0] = "nobody"
    refused(proto, "not a valid model", "nobody")


def test_assigned_twice() -> None:
    proto = relu()
    proto.graph.node.append(proto.graph.node[0])
    refused(proto, "not a valid model", "y")


def test_unknown_op_of_the_default_domain() -> None:
    proto = relu()
    proto.graph.node[0].op_type = "Rellu"
    refused(proto, "not a valid model", "Rellu")


def test_cycle() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) { a = Add(x, b)  b = Relu(a)  y = Relu(b) }""")
    refused(proto, "not a valid model")


def test_unsorted_nodes_are_sorted() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) { y = Relu(a)  a = Abs(x) }""")
    model = load(proto)
    assert [n.op_type for n in model.graph] == ["Abs", "Relu"]
    check_model(model)


def test_raw_data_of_the_wrong_size() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] w> { y = Add(x, w) }""")
    del proto.graph.initializer[:]
    proto.graph.initializer.add(name="w", data_type=1, dims=[1000], raw_data=bytes(4004))
    refused(proto, "'w'", "4000", "4004")


def test_maps_are_refused_with_the_way_out() -> None:
    proto = relu()
    proto.graph.output[0].type.sequence_type.elem_type.map_type.key_type = onnx.TensorProto.INT64
    refused(proto, "'y' is a map", "zipmap=False")


def test_old_initializers_need_not_be_inputs() -> None:
    model = load(parse("""
        <ir_version: 3, opset_import: ["" : 8]>
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"""))
    assert list(model.graph.initializers) == ["w"]


def test_outputs_without_a_type() -> None:
    proto = relu()
    proto.graph.output[0].ClearField("type")
    assert [v.name for v in load(proto).graph.outputs] == ["y"]


def test_unknown_domains_are_kept() -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 17, "my.ops" : 3]>
        g (float[4] x) => (float[4] y) { a = my.ops.Spin <turns = 2> (x)  y = Relu(a) }"""))
    assert [(n.domain, n.op_type) for n in model.graph] == [("my.ops", "Spin"), ("", "Relu")]
    assert model.graph.opset_imports["my.ops"] == 3
    check_model(model)


def test_old_initializers_are_no_inputs() -> None:
    text = """
        <ir_version: %d, opset_import: ["" : 8]>
        g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"""
    assert [v.name for v in load(parse(text % 3)).graph.inputs] == ["x"]
    assert [v.name for v in load(parse(text % 4)).graph.inputs] == ["x", "w"]


def test_sparse_initializers_become_dense() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }""")
    sparse = proto.graph.sparse_initializer.add(dims=[2, 3])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([5, 6], np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 5], np.int64), "i"))
    tensor = load(proto).graph.initializers["w"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), [[0, 5, 0], [0, 0, 6]])
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 6], np.int64), "i"))
    refused(proto, "'w'", "do not fit")


# -- names ------------------------------------------------------------------------------------------------
def test_names_are_unique_across_graphs() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x, bool c) => (float[4] y) {
            t = Relu(x)
            y = If (c) <then_branch = a () => (float[4] r) { s = Abs(t) r = Neg(s) },
                        else_branch = b () => (float[4] r) { s = Exp(t) r = Neg(s) }>
        }""")
    model = load(proto)
    check_model(model)
    nodes = list(model.graph.all_nodes())
    assert len(nodes) == 6
    assert len({n.name for n in nodes}) == 6
    values = [o.name for n in nodes for o in n.outputs]
    assert len(set(values)) == len(values)
    assert [v.name for v in model.graph.outputs] == ["y"]


def test_omitted_outputs_stay_omitted() -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3, 1, 2] x, float[1, 8, 2] w, float[1, 8, 2] r) => (float[1, 1, 2] h) {
            , h = LSTM <hidden_size = 2> (x, w, r)
        }"""))
    (node,) = model.graph
    assert [o.name for o in node.outputs] == ["", "h"]


# -- extents ----------------------------------------------------------------------------------------------
def shape(model: ir.Model, index: int = 0) -> str:
    return str(model.graph.inputs[index].shape)


def test_unnamed_extents_get_names() -> None:
    proto = relu()
    proto.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    for text in ("?", "", "None", "-1"):
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text
        assert shape(load(proto)) == "[x_d0,x_d1,4]"
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert shape(load(proto)) == "[x_d0,x_d1,4]"


def test_an_input_that_is_an_output_keeps_its_shape() -> None:
    """Outputs often declare none, and one value has one shape."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "yx"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], outputs)
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert str(model.graph.inputs[0].shape) == "[n,3]"


def test_odd_names_become_plain_symbols_and_sums_stay() -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float["batch size"] a, float["past + 1"] b, float["past + seq"] c, float[past, seq] d)
            => (float["batch size"] y)
        { y = Relu(a) }"""))
    assert [shape(model, i) for i in range(4)] == ["[batch_size]", "[past_plus_1]", "[seq+past]", "[past,seq]"]
    assert str(model.graph.outputs[0].shape) == "[batch_size]"


@pytest.mark.parametrize(("ids", "mask"), [
    ("int64[batch, 1]", "past+1"), ("int64[batch, seq]", "past_plus_1"), ("int64[batch, 2]", "past_plus_1"),
    ("float[batch, 1, 64]", "past+1"), ("float[batch, seq, 64]", "past_plus_1"), ("float[batch, 64]", "past_plus_1"),
])
def test_a_sum_with_a_number_holds_only_if_the_tokens_are_that_many(ids: str, mask: str) -> None:
    model = load(parse(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g ({ids} ids, int64[batch, "past + 1"] mask, float[batch, 4, past, 16] k)
            => (float[batch, 4, past, 16] y) {{ y = Relu(k) }}"""))
    assert shape(model, 1) == f"[batch,{mask}]"


def test_freezing_reaches_every_shape() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, seq] x, bool c) => (float[batch, "2 * seq"] y)
        <float[batch, seq] t> {
            t = Relu(x)
            y = If (c) <then_branch = a () => (float[batch, "2 * seq"] r) { r = Concat <axis = 1> (t, t) },
                        else_branch = b () => (float[batch, "2 * seq"] s) { s = Concat <axis = 1> (t, x) }>
        }""")
    model = load(proto, dims={"batch": 3, "seq": 5})
    assert shape(model) == "[3,5]"
    assert str(model.graph.outputs[0].shape) == "[3,10]"
    for node in model.graph.all_nodes():
        assert str(node.outputs[0].shape) in ("[3,5]", "[3,10]")
    partly = load(proto, dims={"seq": 5})
    assert str(partly.graph.outputs[0].shape) == "[batch,10]"


@pytest.mark.parametrize(("dims", "parts"), [
    ({"bach": 1}, ("no dim 'bach'", "batch (x, axis 0)", "seq (x, axis 1)")),
    ({"batch": -1}, ("'batch'", "negative", "-1")),
    ({"batch": 1.5}, ("'batch'", "integer", "1.5")),
    ({"batch": True}, ("'batch'", "integer")),
    ({"batch": "bach+seq"}, ("'batch'", "no dim 'bach'", "batch, seq")),
    ({"batch": "seq-1"}, ("'batch'", "'seq-1'", "positive")),
    ({"batch": "seq//2"}, ("'batch'", "'seq//2'", "positive")),
    ({"batch": "2 seq"}, ("'batch'", "'2 seq'", "past+seq")),
    ({"batch": "batch+1"}, ("'batch'", "'batch+1'", "itself")),
    ({"batch": "2*seq", "seq": "2*n"}, ("'batch'", "'2*seq'", "'seq'")),
])
def test_wrong_dims(dims: dict[str, int | str], parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        load(relu(), dims=dims)
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("dims", "wanted"), [
    ({"seq": "2*batch+1"}, "[batch,2*batch+1,4]"), ({"seq": "8*n"}, "[batch,8*n,4]"),
    ({"seq": "batch"}, "[batch,batch,4]"),
    ({"seq": "batch+1", "batch": 2}, "[2,3,4]"), ({"seq": "7"}, "[batch,7,4]"),
])
def test_a_dim_follows_from_others(dims: dict[str, int | str], wanted: str) -> None:
    assert shape(load(relu(), dims=dims)) == wanted


def test_dims_may_be_given_as_the_exporter_wrote_them() -> None:
    proto = relu()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch size"
    assert shape(load(proto, dims={"batch size": 2})) == "[2,seq,4]"
    assert shape(load(proto, dims={"batch_size": 2})) == "[2,seq,4]"


def test_zero_is_an_extent() -> None:
    assert shape(load(relu(), dims={"batch": 0})) == "[0,seq,4]"


def test_constants_of_several_graphs_may_have_one_name() -> None:
    """A body that is written twice brings its constants twice; renaming one must not disturb the walk."""
    def branch(value: float) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node("Add", ["x", "c"], ["y"])], "b", [],
                                 [helper.make_tensor_value_info("y", 1, [2])],
                                 [numpy_helper.from_array(np.float32(value), "c")])

    nodes = [helper.make_node("If", ["t"], [out], then_branch=branch(1), else_branch=branch(2)) for out in ("o", "p")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [2]),
                                           helper.make_tensor_value_info("t", onnx.TensorProto.BOOL, [])],
                              [helper.make_tensor_value_info(out, 1, [2]) for out in ("o", "p")])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    constants = [name for g in all_graphs(model) for name in g.initializers]
    assert len(constants) == len(set(constants)) == 4
