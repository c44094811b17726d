"""Views inside kernels where they are awkward: parts of concatenations, reversed loops, broadcasts of rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.codegen.reference import check, evaluate, spread, widened
from tests.numeric.codegen.runner import compile_lowered, lower
from tests.unit.fusion.parse import model
from tilegraph.codegen.isa import Isa
from tilegraph.ops.prims import Decline

CASES = {
    # A slice of a concatenation: the place where its parts meet may lie outside of the loop.
    "slice before the meeting place": """(float[3,40] a, float[3,40] b) => (float[3,1] s, float[3,20] y) {
        c = Concat<axis=1>(a, b) st = Constant<value_ints=[2]>() en = Constant<value_ints=[22]>()
        ax = Constant<value_ints=[1]>() y0 = Slice(c, st, en, ax) s = ReduceSum(y0, ax) y = Sub(y0, s) }""",
    "slice behind the meeting place": """(float[3,40] a, float[3,40] b) => (float[3,1] s, float[3,20] y) {
        c = Concat<axis=1>(a, b) st = Constant<value_ints=[50]>() en = Constant<value_ints=[70]>()
        ax = Constant<value_ints=[1]>() y0 = Slice(c, st, en, ax) s = ReduceSum(y0, ax) y = Sub(y0, s) }""",
    "slice over the meeting place": """(float[3,40] a, float[3,40] b) => (float[3,1] s, float[3,20] y) {
        c = Concat<axis=1>(a, b) st = Constant<value_ints=[31]>() en = Constant<value_ints=[51]>()
        ax = Constant<value_ints=[1]>() y0 = Slice(c, st, en, ax) s = ReduceSum(y0, ax) y = Sub(y0, s) }""",
    "rows of a slice of a concatenation": """(float[6,19] a, float[6,19] b) => (float[5,19] y) {
        c = Concat<axis=0>(a, b) st = Constant<value_ints=[7]>() en = Constant<value_ints=[12]>()
        ax = Constant<value_ints=[0]>() y0 = Slice(c, st, en, ax) y = Softmax<axis=-1>(y0) }""",
    # What one part of a concatenation computes is wanted again for every column by a later pass.
    "a value kept for a part only": """(float[3,64] x, float[3,32] z) => (float[3,64] y) {
        e = Exp(x) st = Constant<value_ints=[0]>() en = Constant<value_ints=[32]>() ax = Constant<value_ints=[1]>()
        h = Slice(e, st, en, ax) c = Concat<axis=1>(h, z) s = ReduceSum(c, ax) y = Mul(e, s) }""",
    "a stored value behind a part": """(float[3,64] x, float[3,32] z) => (float[3,64] e, float[3,64] y) {
        e = Exp(x) st = Constant<value_ints=[0]>() en = Constant<value_ints=[32]>() ax = Constant<value_ints=[1]>()
        h = Slice(e, st, en, ax) c = Concat<axis=1>(h, z) s = ReduceSum(c, ax) y = Mul(e, s) }""",
    # Per-row operands of the part that this row does not belong to must not be read.
    "rows of columns of one": """(float[4,1] a, float[4,1] b, float[8,33] x) => (float[8,33] y) {
        ea = Exp(a) eb = Tanh(b) c = Concat<axis=0>(ea, eb) y = Mul(x, c) }""",
    "rows of parts with columns of one": """(float[4,1] a, float[4,33] x, float[5,1] b, float[5,33] z) =>
        (float[9,33] y) { p = Mul(a, x) q = Add(b, z) c = Concat<axis=0>(p, q) y = Relu(c) }""",
    "a reduction of concatenated rows": """(float[4,32] a, float[3,32] b) => (float[7,32] y) {
        ea = Exp(a) c = Concat<axis=0>(ea, b) ax = Constant<value_ints=[1]>() s = ReduceMax(c, ax) y = Sub(c, s) }""",
    # Loops that run backwards and are then divided.
    "reversed and taken apart": """(float[2,3,16] x) => (float[6,16] y) {
        sh = Constant<value_ints=[6,16]>() r = Reshape(x, sh) st = Constant<value_ints=[-1]>()
        en = Constant<value_ints=[-7]>() ax = Constant<value_ints=[0]>() sp = Constant<value_ints=[-1]>()
        v = Slice(r, st, en, ax, sp) y = Relu(v) }""",
    "transposed, reversed and taken apart": """(float[2,5,16] x) => (float[10,16] y) {
        t = Transpose<perm=[1,0,2]>(x) sh = Constant<value_ints=[10,16]>() r = Reshape(t, sh)
        st = Constant<value_ints=[-1]>() en = Constant<value_ints=[-11]>() ax = Constant<value_ints=[0]>()
        sp = Constant<value_ints=[-1]>() v = Slice(r, st, en, ax, sp) y = Relu(v) }""",
    "a transposed output beside a plain one": """(float[4,8,16] x) => (float[4,8,16] y, float[8,4,16] z) {
        y = Exp(x) z = Transpose<perm=[1,0,2]>(y) }""",
    "the middle of an axis, twice": """(float[3,48] x) => (float[3,48] y) {
        a, b, c = Split<axis=-1, num_outputs=3>(x) n = Neg(b) y = Concat<axis=-1>(n, a, c) }""",
    "rotary embedding": """(float[1,5,4,32] x, float[1,5,1,32] c, float[1,5,1,32] s) => (float[1,5,4,32] y) {
        a, b = Split<axis=-1, num_outputs=2>(x) n = Neg(b) r = Concat<axis=-1>(n, a)
        p = Mul(x, c) q = Mul(r, s) y = Add(p, q) }""",
}


@pytest.mark.parametrize("bits", [32, 256])
@pytest.mark.parametrize("name", CASES)
def test_views(name: str, bits: int) -> None:
    made = model(CASES[name])
    nodes, outputs = list(made.graph), list(made.graph.outputs)
    rng = np.random.default_rng(0)
    feeds = {v: rng.normal(size=tuple(v.shape)).astype(np.float32) for v in made.graph.inputs}  # type: ignore[arg-type]
    region = lower(nodes, outputs, 20)
    kernel = compile_lowered(region, Isa("x86-64-v3", (), bits))
    truth = evaluate(nodes, {v: widened(a) for v, a in feeds.items()}, {})
    deviations = spread(nodes, feeds, {}, truth)
    for tasks, offset in ((1, 0), (3, 4)):
        results = kernel.run({v.name or "": a for v, a in feeds.items()}, tasks, offset)
        for k, ours in zip(kernel.kernel.outputs, results, strict=True):
            check(f"{name}.{k}", "float", ours, truth[outputs[k]], deviations[outputs[k]])
        kernel.check_fences({v.name or "": a for v, a in feeds.items()}, tasks)


def test_too_many_parts_are_refused() -> None:
    """Each concatenation along another axis multiplies the kernel's parts."""
    lists = ", ".join(f"p{k}" for k in range(40))
    made = model(f"""(float[2,40] x) => (float[2,40] y) {{
        {lists} = Split<axis=1, num_outputs=40>(x) c = Concat<axis=1>({lists}) y = Relu(c) }}""")
    with pytest.raises(Decline, match="cut the kernel into 40 parts"):
        compile_lowered(lower(list(made.graph), list(made.graph.outputs), 20))
