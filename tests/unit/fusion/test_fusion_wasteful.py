"""Growth joins what is computed as often as alone, and leaves out what broadcasting would compute again and again."""

from __future__ import annotations

import onnx.parser
import pytest

from tilegraph.compiler import OptimizedModel, optimize


def fused(text: str) -> OptimizedModel:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    return optimize(model, offload="all", dry_run=True)


LAYER_NORM = """g (float[ROWS,64] x, float[64] gain, float[64] bias) => (float[ROWS,64] y)
  <float eps = {1e-5}, float two = {2}> {
    mean = ReduceMean<axes=[-1]>(x)
    d = Sub(x, mean)
    square = Pow(d, two)
    var = ReduceMean<axes=[-1]>(square)
    safe = Add(var, eps)
    std = Sqrt(safe)
    n = Div(d, std)
    scaled = Mul(n, gain)
    y = Add(scaled, bias)
}"""


@pytest.mark.parametrize("rows", ["16", "65536", "N"])
def test_a_layer_norm_is_one_region_whatever_its_rows(rows: str) -> None:
    """What happens once a row counted as 16 times what it costs alone, so many rows cut the kernel in two."""
    assert fused(LAYER_NORM.replace("ROWS", rows)).summary.regions == 1


def test_what_every_row_would_compute_again_stays_outside() -> None:
    model = fused("""g (float[4096,64] x, float[64] b) => (float[4096,64] y) {
        e = Erf(b)
        t = Tanh(e)
        m = Mul(x, t)
        y = Sigmoid(m)
    }""")
    assert model.summary.regions == 2
    taken = sorted(d.data["ops"] for d in model.diagnostics.of("fusion", taken=True))
    assert taken == [["Erf", "Tanh"], ["Mul", "Sigmoid"]]


def test_of_a_product_of_computed_matrices_its_own_stage_says_why_it_stays() -> None:
    made = optimize(onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[64,64] x, float[64,64] z) => (float[64,64] y) '
        "{ a = Relu(x) b = MatMul(a, z) c = Sigmoid(b) y = Transpose(c) }"), offload="all", dry_run=True)
    assert [(r["stage"], r["op"], r["reason"]) for r in made.summary.refusals] == \
        [("gemm", "MatMul", "the matrix is not constant")]
