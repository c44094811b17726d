"""Shape inference: chains of shape arithmetic, rules, control flow, stale declarations."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from norm_check import loaded, shapes

from tilegraph.io import freeze_dims, load
from tilegraph.passes import PassContext
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.normalise import LiftConstants, Shapes, symbolic_contents
from tilegraph.spec.dims import Dim


def inferred(text: str) -> ir.Model:
    model = loaded(text)
    LiftConstants().run(model, PassContext())
    assert Shapes().run(model, PassContext()).modified
    check_model(model)
    assert not Shapes().run(model, PassContext()).modified
    return model


def shape(body: str, inputs: str = "float[batch, seq, 64] x", *, of: str = "y") -> str:
    model = inferred(f"g ({inputs}) => (float[q0, q1] out) {{ {body}  out = my.ops.End({of}) }}")
    return shapes(model)[of]


CONST = {"m1": -1, "zero": 0, "one": 1, "two": 2, "big": 2**63 - 1}
C = " ".join(f"{n} = Constant <value_ints = [{v}]> ()  {n}s = Constant <value_int = {v}> ()" for n, v in CONST.items())


def test_splitting_heads() -> None:
    assert shape(C + """ s = Shape(x)  b = Gather(s, zero)  t = Gather(s, one)
        heads = Constant <value_ints = [4]> ()  n = Concat <axis = 0> (b, t, heads, m1)  y = Reshape(x, n)
        """) == "[batch,seq,4,16]"


def test_merging_heads_with_scalars() -> None:
    assert shape(C + """ s = Shape(x)  b = Gather(s, zeros)  h = Gather(s, ones)  d = Gather(s, twos)
        hd = Mul(h, d)  u = Unsqueeze(b, zero)  v = Unsqueeze(hd, zero)  n = Concat <axis = 0> (u, v)
        y = Reshape(x, n)""") == "[batch,64*seq]"


def test_extents_from_the_end() -> None:
    assert shape(C + """ s = Shape(x)  d = Gather(s, m1)  t = Gather(s, one)  n = Concat <axis = 0> (d, t, m1)
        y = Reshape(x, n)""") == "[64,seq,batch]"


def test_copied_extents_cancel() -> None:
    assert shape(C + "n = Constant <value_ints = [0, 0, 8, -1]> ()  y = Reshape(x, n)") == "[batch,seq,8,8]"
    assert shape(C + "n = Constant <value_ints = [-1, 64]> ()  y = Reshape(x, n)") == "[batch*seq,64]"
    assert shape(C + "n = Constant <value_ints = [0, -1]> ()  y = Reshape(x, n)") == "[batch,64*seq]"


def test_allowzero() -> None:
    assert shape("n = Constant <value_ints = [0, 5]> ()  y = Reshape <allowzero = 1> (x, n)") == "[0,5]"


def test_windows_of_a_symbolic_image() -> None:
    assert shape(C + """ s = Shape(x)  h = Gather(s, ones)  seven = Constant <value_int = 7> ()  q = Div(h, seven)
        u = Unsqueeze(q, zero)  b = Gather(s, zero)  w = Constant <value_ints = [7]> ()
        n = Concat <axis = 0> (b, u, w, m1)  y = Reshape(x, n)""", "float[batch, seq, 4] x"
    ).startswith("[batch,(seq//7),7,")


def test_expand_with_the_minus_one_idiom() -> None:
    """What PyTorch writes for expand(batch, -1, -1): Where(shape == -1, ones, shape)."""
    assert shape(C + """ s = Shape(x)  b = Gather(s, zero)  n = Concat <axis = 0> (b, m1, m1)
        three = Constant <value_ints = [3]> ()  ones3 = ConstantOfShape <value = int64[1] {1}> (three)
        negative = Mul(ones3, m1)  e = Equal(n, negative)  w = Where(e, ones3, n)  y = Expand(p, w)""",
        "float[batch, seq, 64] x, float[1, 7, 64] p") == "[batch,7,64]"


def test_causal_mask_from_a_buffer() -> None:
    body = C + """ s = Shape(x)  t = Gather(s, one)  three = Constant <value_ints = [3]> ()
        a = Slice(buffer, zero, t, two)
        mask = Slice(a, zero, t, three)  perm = Transpose <perm = [0, 1, 3, 2]> (k)  scores = MatMul(q, perm)
        y = Where(mask, scores, scores)"""
    heads = "float[batch, 4, seq, 16]"
    inputs = f"float[batch, seq, 64] x, bool[1, 1, 512, 512] buffer, {heads} q, {heads} k"
    assert shape(body, inputs, of="mask") == "[1,1,min(512, seq),min(512, seq)]"
    assert shape(body, inputs) == "[batch,4,seq,seq]"


def test_positions_with_a_past() -> None:
    body = C + """ s = Shape(x)  t = Gather(s, ones)  ps = Shape(past)  p = Gather(ps, twos)  e = Add(p, t)
        r = Range(p, e, ones)  y = Unsqueeze(r, zero)"""
    inputs = "float[batch, seq, 64] x, float[batch, 4, past, 16] past"
    assert shape(body, inputs) == "[1,seq]"
    cat = "y = Concat <axis = 2> (past, new)"
    assert shape(cat, "float[batch, 4, past, 16] past, float[batch, 4, seq, 16] new") == "[batch,4,seq+past,16]"


def test_what_is_joined_has_the_simplest_extent() -> None:
    """MobileBERT's embeddings: one of the three neighbours is padded in front, one behind."""
    body = C + """ p = Constant <value_ints = [0, 0, 0, 0, 1, 0]> ()  a = Slice(x, one, big, one)  b = Pad(a, p)
        y = Concat <axis = 2> (b, x)"""
    assert shape(body, of="b") == "[batch,max(0, seq-1)+1,64]"
    assert shape(body) == "[batch,seq,128]"


@pytest.mark.parametrize(("fill", "expected"), [("1", "[batch,1]"), ("0", "[None,1]")])
def test_counting_by_nonzero(fill: str, expected: str) -> None:
    """Exporters write arange(n) as the places of n ones."""
    body = C + f""" s = Shape(x)  b = Gather(s, zero)  f = ConstantOfShape <value = int64[1] {{{fill}}}> (b)
        z = NonZero(f)  y = Transpose(z)"""
    assert shape(body) == expected


@pytest.mark.parametrize(("starts", "ends", "expected"), [
    ("zero", "m1", "max(0, seq-1)"), ("one", "big", "max(0, seq-1)"), ("m1", "big", "min(1, seq)"),
    ("zero", "big", "seq"), ("zero", "two", "min(2, seq)"),
])
def test_slices_of_symbols(starts: str, ends: str, expected: str) -> None:
    found = shape(C + f" y = Slice(x, {starts}, {ends}, one)")
    assert Dim.of(found.split(",", 1)[1].rsplit(",", 1)[0]) == Dim.of(expected)


def test_unsure_broadcasts_and_data_dependent_extents_stay_unknown() -> None:
    assert shape("y = Add(a, b)", "float[n] a, float[m] b") == "[None]"
    assert shape("z = NonZero(x)  y = Transpose(z)") == "[None,3]"
    assert shape("y = Compress <axis = 0> (x, c)", "float[batch, 64] x, bool[batch] c") == "[None,64]"


@pytest.mark.parametrize(("body", "expected"), [
    ("y = Flatten <axis = 2> (x)", "[batch*seq,64]"),
    ("y = Tile(x, r)", "[2*batch,seq,192]"),
    ("y = Pad(x, p)", "[batch,seq+3,64]"),
    ("y = ReduceMean <axes = [-1]> (x)", "[batch,seq,1]"),
    ("y = ReduceMean <axes = [1], keepdims = 0> (x)", "[batch,64]"),
    ("y = ReduceSum(x)", "[1,1,1]"),
    ("a = Constant <value_ints: ints = []> ()  y = ReduceSum <keepdims = 0> (x, a)", "[]"),
    ("y = ArgMax <axis = 2, keepdims = 0> (x)", "[batch,seq]"),
    ("y, best = TopK(x, two)", "[batch,seq,2]"),
    ("a, y = Split <axis = 2> (x)", "[batch,seq,32]"),
    ("y = Gather <axis = 1> (x, i)", "[batch,2,64]"),
    ("y = GatherElements <axis = 1> (x, g)", "[batch,3,64]"),
    ("y = OneHot <axis = 1> (o, d, v)", "[batch,10,seq]"),
    ("y = Einsum <equation = \"bsd,bte->bst\"> (x, x)", "[batch,seq,seq]"),
    ("t = Transpose <perm = [0, 2, 1]> (x)  y = MatMul(x, t)", "[batch,seq,seq]"),
    ("y = Squeeze(u, m1)", "[batch,seq]"),
    ("y = Trilu(x)", "[batch,seq,64]"),
    ("y = LayerNormalization(x, w)", "[batch,seq,64]"),
    ("y = com.microsoft.FusedMatMul <transB = 1> (x, x)", "[batch,seq,seq]"),
    ("y = com.microsoft.BiasGelu(x, w)", "[batch,seq,64]"),
    ("y, m = Dropout(x)", "[batch,seq,64]"),
    ("y = CumSum(x, two)", "[batch,seq,64]"),
    ("y = Softmax(x)", "[batch,seq,64]"),
])
def test_rules(body: str, expected: str) -> None:
    consts = C + """ r = Constant <value_ints = [2, 1, 3]> ()  p = Constant <value_ints = [0, 1, 0, 0, 2, 0]> ()
        i = Constant <value_ints = [0, 3]> ()  d = Constant <value_int = 10> ()
        v = Constant <value_floats = [0.0, 1.0]> () """
    inputs = "float[batch, seq, 64] x, int64[batch, seq] o, int64[batch, 3, 64] g, float[batch, seq, 1] u, float[64] w"
    text = f"g ({inputs}) => (float[q0, q1] out) {{ {consts} {body}  out = my.ops.End(y) }}"
    proto = f'<ir_version: 8, opset_import: ["" : 17, "my.ops" : 1, "com.microsoft" : 1]> {text}'
    model = load(onnx.parser.parse_model(proto))
    LiftConstants().run(model, PassContext())
    Shapes().run(model, PassContext())
    assert shapes(model)["y"] == expected


@pytest.mark.parametrize(("body", "expected"), [
    ("y = Conv <pads = [1, 1, 1, 1]> (x, w)", "[n,8,h,w]"),
    ("y = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)", "[n,8,((h-1)//2)+1,((w-1)//2)+1]"),
    ("y = Conv <auto_pad = \"SAME_UPPER\", strides = [2, 2]> (x, w)", "[n,8,((h+1)//2),((w+1)//2)]"),
    ("y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", "[n,3,((h-2)//2)+1,((w-2)//2)+1]"),
    ("y = ConvTranspose <strides = [2, 2]> (x, t)", "[n,8,2*h,2*w]"),
    ("y = GlobalAveragePool(x)", "[n,3,1,1]"),
    ("y = Resize <mode = \"nearest\"> (x, , s)", "[n,3,2*h,(w//2)]"),
    ("y = SpaceToDepth <blocksize = 2> (x)", "[n,12,(h//2),(w//2)]"),
])
def test_images(body: str, expected: str) -> None:
    model = inferred(f"""g (float[n, 3, h, w] x, float[8, 3, 3, 3] w0, float[3, 8, 2, 2] t) => (float[q] out) {{
        s = Constant <value_floats = [1.0, 1.0, 2.0, 0.5]> ()  {body.replace("(x, w)", "(x, w0)")}
        out = my.ops.End(y) }}""")
    found = shapes(model)["y"]
    parts = [Dim.of(p) for p in found.strip("[]").split(",")]
    assert parts == [Dim.of(p) for p in expected.strip("[]").split(",")]


@pytest.mark.parametrize(("attributes", "expected"), [
    ("kernel_shape = [1, 2], strides = [3, 3]", "[1,3,None,None]"),  # onnx counts a window behind the end
    ("kernel_shape = [2, 2], strides = [2, 3], pads = [0, 0, 0, 1]", "[1,3,1,None]"),
    ("kernel_shape = [2, 2], strides = [2, 1]", "[1,3,1,2]"),
    ("kernel_shape = [1, 3], strides = [1, 2], auto_pad = \"VALID\"", "[1,3,2,1]"),
    ("kernel_shape = [2, 2], dilations = [1, 2], auto_pad = \"SAME_UPPER\"", "[1,3,None,None]"),  # onnx pads by more
])
def test_pools_that_round_up(attributes: str, expected: str) -> None:
    body = f"y = MaxPool <ceil_mode = 1, {attributes}> (x)"
    assert shape(body, "float[1, 3, 2, 3] x") == expected


@pytest.mark.parametrize(("attributes", "expected"), [
    ("kernel_shape = [2, 2], strides = [2, 2]", "[1,3,((h-1)//2)+1,((w-1)//2)+1]"),  # as a convolution of stride 2
    ("kernel_shape = [3, 2], strides = [2, 3], pads = [1, 0, 1, 0]", "[1,3,(h//2)+1,None]"),  # a gap between windows
    ("kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 0, 1]", "[1,3,((h-1)//2)+1,None]"),
])
def test_pools_that_round_up_symbolic_extents(attributes: str, expected: str) -> None:
    body = f"y = AveragePool <ceil_mode = 1, {attributes}> (x)"
    assert shape(body, "float[1, 3, h, w] x") == expected


def test_what_is_declared_behind_a_pool_of_unknown_extent_is_not_believed() -> None:
    """onnx's inference, which most declared shapes are from, has [1,3,2,2] for `p`, and ONNX Runtime [1,3,1,1]."""
    model = loaded("""g (float[1, 3, 2, 3] x) => (float[1, 3, a, b] y) <float[1, 3, 1, 2] p, float[1, 3, 1, 2] q> {
        p = MaxPool <ceil_mode = 1, kernel_shape = [1, 2], strides = [3, 3]> (x)  q = Relu(p)  y = Exp(q) }""")
    Shapes().run(model, PassContext())
    found = shapes(model)
    assert (found["p"], found["q"]) == ("[1,3,None,None]", "[1,3,None,None]")


def test_frozen_extents_are_integers_everywhere() -> None:
    model = loaded("""g (float[batch, seq, 64] x) => (float[batch, q] y) {
        n = Constant <value_ints = [0, -1]> ()  y = Reshape(x, n) }""")
    freeze_dims(model, {"batch": 2, "seq": 3})
    Shapes().run(model, PassContext())
    LiftConstants().run(model, PassContext())
    Shapes().run(model, PassContext())
    assert shapes(model)["y"] == "[2,192]"


# -- contents ---------------------------------------------------------------------------------------------
def test_contents_are_kept_for_later_passes() -> None:
    model = inferred(C.join(("g (float[batch, seq, 64] x) => (int64[2] y) { ", """ s = Shape(x)  b = Gather(s, zeros)
        t = Gather(s, ones)  p = Mul(b, t)  u = Unsqueeze(p, zero)  y = Concat <axis = 0> (u, m1) }""")))
    contents = symbolic_contents(model.graph.outputs[0])
    assert contents == (Dim.of("batch*seq"), Dim.of(-1))
    assert symbolic_contents(model.graph.inputs[0]) is None


# -- control flow -----------------------------------------------------------------------------------------
def test_branches_that_agree_and_branches_that_do_not() -> None:
    model = inferred("""g (float[n, 4] x, bool c) => (float[n, 4] y, float[n, q] z) {
        y, z = If (c) <then_branch = t () => (float[n, 4] a, float[n, q] b) { a = Neg(x)  b = Exp(x) },
                       else_branch = e () => (float[n, 4] p, float[n, q] q) {
                           p = Abs(x)  q = Concat <axis = 1> (x, x) }> }""")
    assert shapes(model)["y"] == "[n,4]"
    assert shapes(model)["z"] == "[n,None]"


def test_a_loop_that_grows_and_one_that_does_not() -> None:
    model = inferred("""g (float[n, 4] x, int64 k, bool c) => (float[n, 4] y, float[p, 4] z, float[r, n, 4] all) {
        y, z, all = Loop (k, c, x, x) <body = b (int64 i, bool ci, float[n, 4] v, float[m, 4] w)
            => (bool co, float[n, 4] v2, float[m2, 4] w2, float[n, 4] each) {
            co = Identity(ci)  v2 = Neg(v)  w2 = Concat <axis = 0> (w, x)  each = Abs(v) }> }""")
    found = shapes(model)
    assert found["y"] == "[n,4]"
    assert found["z"] == "[None,4]"
    assert found["w2"] == "[None,4]"
    assert found["all"] == "[None,n,4]"


def test_a_loop_with_a_known_trip_count() -> None:
    model = inferred("""g (float[n, 4] x) => (float[n, 4] y, float[r, n, 4] all) <int64 k = {5}, bool c = {1}> {
        y, all = Loop (k, c, x) <body = b (int64 i, bool ci, float[n, 4] v)
            => (bool co, float[n, 4] v2, float[n, 4] e) { co = Identity(ci)  v2 = Neg(v)  e = Abs(v) }> }""")
    assert shapes(model)["all"] == "[5,n,4]"


def test_the_body_of_a_loop_gets_the_shapes_of_the_trip_count_and_the_condition() -> None:
    """ONNX Runtime refuses a body that states other ones."""
    model = inferred("""g (float[n] x, int64[1] k, bool[1] c) => (float[n] y) {
        y = Loop (k, c, x) <body = b (int64[1] i, bool[1] ci, float[n] v) => (bool[1] co, float[n] w) {
            co = Identity(ci)  j = Cast <to = 1> (i)  w = Add(v, j) }> }""")
    assert [shapes(model)[name] for name in ("j", "co", "w")] == ["[1]", "[1]", "[n]"]


def test_scan() -> None:
    model = inferred("""g (float[n] s, float[seq, n] x) => (float[n] last, float[p, q] all) {
        last, all = Scan <num_scan_inputs = 1, body = b (float[n] a, float[n] e) => (float[n] a2, float[n] out) {
            a2 = Add(a, e)  out = Identity(a2) }> (s, x) }""")
    assert shapes(model)["last"] == "[n]"
    assert shapes(model)["all"] == "[seq,n]"
    assert shapes(model)["a2"] == "[n]"


def test_a_scan_over_something_of_unknown_rank_keeps_the_shapes_of_its_body() -> None:
    """ONNX Runtime refuses a Scan whose body says no shape of a result."""
    model = loaded("""g (float[n] s, float[] x) => (float[n] last, float[p, q] all) {
        last, all = Scan <num_scan_inputs = 1, body = b (float[n] a, float[n] e) => (float[n] a2, float[n] out) {
            a2 = Add(a, e)  out = Identity(a2) }> (s, x) }""")
    next(v for v in model.graph.inputs if v.name == "x").shape = None
    Shapes().run(model, PassContext())
    assert shapes(model)["a2"] == shapes(model)["out"] == "[n]"


# -- declarations -----------------------------------------------------------------------------------------
def test_stale_shapes_give_way_and_are_reported() -> None:
    """A model whose batch was made dynamic afterwards still declares the old one inside."""
    model = loaded("""g (float[batch, 4] x) => (float[batch, 4] y) <float[1, 4] a, float[7, 4] u> {
        a = Neg(x)  u = my.ops.Any(a)  y = Add(a, a) }""")
    context = PassContext()
    assert Shapes().run(model, context).modified
    found = shapes(model)
    assert found["a"] == "[batch,4]"
    assert found["u"] == "None"  # nobody knows, and the model has proved to be no authority
    (decision,) = context.diagnostics
    assert decision.subject == "a"
    assert "[1, 4]" in decision.reason
    assert "[batch, 4]" in decision.reason
    assert not Shapes().run(model, PassContext()).modified


@pytest.mark.parametrize(("given", "shape"), [("", "[n,4]"), (", int64[1] s", "[n,None]")])
def test_declared_shapes_behind_what_a_caller_may_override_are_not_used(given: str, shape: str) -> None:
    """onnx's inference takes the default for the value of every run, and a Slice of everything is no Slice."""
    model = loaded("g (float[n, 4] x" + given + """) => (float[n, 4] y)
        <int64[1] s = {0}, int64[1] e = {4}, int64[1] ax = {1}, float[n, 4] p, float[n, 4] q> {
        p = Slice(x, s, e, ax)  q = my.ops.Any(p)  y = Add(p, q) }""")
    Shapes().run(model, PassContext())
    found = shapes(model)
    assert found["p"] == shape
    assert found["q"] == ("None" if given else shape)


def test_declared_shapes_of_unknown_ops_are_used_when_nothing_is_stale() -> None:
    model = loaded("""g (float[batch, 4] x) => (float[batch, 8] y) <float[batch, 8] u> {
        u = my.ops.Any(x)  y = Neg(u) }""")
    Shapes().run(model, PassContext())
    assert shapes(model)["y"] == "[batch,8]"


def test_inputs_are_never_rewritten() -> None:
    model = loaded("g (float[batch, 4] x, int64[2] n) => (float[q, r] y) { y = Reshape(x, n) }")
    Shapes().run(model, PassContext())
    assert [str(v.shape) for v in model.graph.inputs] == ["[batch,4]", "[2]"]
    assert shapes(model)["y"] == "[q,r]"  # the declared names of outputs stay where nothing is known


def test_calls_of_fused_ops_keep_their_shapes() -> None:
    model = load(onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "ai.tilegraph" : 1]>
        g (float[n, 4] x) => (float[n, 4] y) <float[n, 4] a> { a = ai.tilegraph.fused(x)  y = Neg(a) }
        <domain: "ai.tilegraph", opset_import: ["" : 17]> fused (v) => (r) { r = Neg(v) }"""))
    Shapes().run(model, PassContext())
    assert shapes(model) == {"a": "[n,4]", "y": "[n,4]"}
