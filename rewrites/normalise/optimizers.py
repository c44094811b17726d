"""The steps of ai.onnx.preview.training (Adam, Momentum, Adagrad) as function bodies of standard operators.

ONNX defines them in pseudo code only, and no ONNX Runtime without its training build has kernels for them. The learning
rate and what follows from the number of steps are computed in float64, as in ONNX's reference: in float32 1 - beta**T
has lost four digits after the first steps. Everything else is in the parameter's own dtype. A term is not left out
where its coefficient is 0: of an infinite parameter it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import defs, parser

DOMAIN = "ai.onnx.preview.training"
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_FIRST_OPSET = 9  # Where, and Greater of int64


def optimizer_body(node: ir.Node, opset: int) -> onnx.FunctionProto | str:
    """The body of `node`, of as many parameters as it has; text with the reason where there is none."""
    if node.op_type not in _STEPS:
        return f"ONNX gives {node.op_type} no meaning that one node has"
    if opset < _FIRST_OPSET:
        return f"its body needs opset {_FIRST_OPSET}, the model has {opset}"
    step, kept = _STEPS[node.op_type]
    count, rest = divmod(len(node.inputs) - 2, 2 + len(kept))
    if rest or count < 1 or len(node.outputs) > count * (1 + len(kept)):
        return f"{len(node.inputs)} inputs and {len(node.outputs)} outputs are not those of whole parameters"
    if any(v is None for v in node.inputs):
        return "an input is missing"
    dtypes = [v.dtype for v in node.inputs[2:] if v is not None]
    for k in range(count):
        own = set(dtypes[k::count])
        if len(own) != 1 or not own <= set(_FLOATS):
            return f"the element types of parameter {k} are not known to be all float, or all double"
    mode = node.attributes["mode"].as_string() if "mode" in node.attributes else ""
    if node.op_type == "Momentum" and mode not in ("standard", "nesterov"):
        return f"mode {mode!r} is neither standard nor nesterov"
    lines = ["rd = Cast<to = 11>(R)", "td = Cast<to = 11>(T)", "zero = Constant<value = int64 {0}>()",
             "later = Greater(T, zero)", _double("one", 1.0)]
    step(lines, _attributes(node), mode, [d.value for d in dtypes[:count] if d is not None])
    inputs = ["R", "T", *(f"{kind}{k}" for kind in f"XG{kept}" for k in range(count))]
    outputs = [f"{kind}n{k}" for kind in f"X{kept}" for k in range(count)][:len(node.outputs)]
    body = "\n".join(lines)
    return parser.parse_function(f'<domain: "", opset_import: ["": {opset}]>\n'
                                 f"{node.op_type} ({', '.join(inputs)}) => ({', '.join(outputs)}) {{\n{body}\n}}")


def _attributes(node: ir.Node) -> dict[str, float]:
    """Its numbers, the defaults included, as a file holds them: 1 - beta tells .999 from its float32."""
    found: dict[str, float] = {}
    for name, attribute in defs.get_schema(node.op_type, 1, DOMAIN).attributes.items():
        if name in node.attributes:
            if name != "mode":
                found[name] = float(np.float32(node.attributes[name].as_float()))
        elif attribute.default_value.name:
            found[name] = attribute.default_value.f
    return found


def _double(name: str, value: float) -> str:
    return f"{name} = Constant<value = double {{{value!r}}}>()"


def _number(lines: list[str], name: str, value: float, dtype: int) -> None:
    lines += [_double(f"{name}_d", value), f"{name} = Cast<to = {dtype}>({name}_d)"]


def _regularized(lines: list[str], k: int, dtype: int, a: dict[str, float]) -> None:
    """Gradient `g` of parameter k and of half its squared norm, times the coefficient."""
    _number(lines, f"norm{k}", a["norm_coefficient"], dtype)
    lines += [f"pull{k} = Mul(norm{k}, X{k})", f"g{k} = Add(pull{k}, G{k})"]


def _average(lines: list[str], kind: str, k: int, dtype: int, decay: float, added: str) -> None:
    _number(lines, f"keep{kind}{k}", decay, dtype)
    lines += [f"old{kind}{k} = Mul(keep{kind}{k}, {kind}{k})", f"{kind}n{k} = Add(old{kind}{k}, {added})"]


def _adam(lines: list[str], a: dict[str, float], mode: str, dtypes: Sequence[int]) -> None:
    lines += [_double("alpha", a["alpha"]), _double("beta", a["beta"]),
              "alpha_t = Pow(alpha, td)", "beta_t = Pow(beta, td)",
              "first = Sub(one, alpha_t)", "second = Sub(one, beta_t)", "root = Sqrt(second)",
              "scaled = Mul(rd, root)", "corrected = Div(scaled, first)", "rate = Where(later, corrected, rd)"]
    for k, dtype in enumerate(dtypes):
        _regularized(lines, k, dtype, a)
        _number(lines, f"newV{k}", 1.0 - a["alpha"], dtype)
        _number(lines, f"newH{k}", 1.0 - a["beta"], dtype)
        lines += [f"partV{k} = Mul(newV{k}, g{k})", f"square{k} = Mul(g{k}, g{k})",
                  f"partH{k} = Mul(newH{k}, square{k})"]
        _average(lines, "V", k, dtype, a["alpha"], f"partV{k}")
        _average(lines, "H", k, dtype, a["beta"], f"partH{k}")
        _number(lines, f"eps{k}", a["epsilon"], dtype)
        _number(lines, f"rest{k}", 1.0 - a["norm_coefficient_post"], dtype)
        lines += [f"sqrt{k} = Sqrt(Hn{k})", f"by{k} = Add(sqrt{k}, eps{k})", f"toward{k} = Div(Vn{k}, by{k})",
                  f"r{k} = Cast<to = {dtype}>(rate)", f"step{k} = Mul(r{k}, toward{k})",
                  f"moved{k} = Sub(X{k}, step{k})", f"Xn{k} = Mul(rest{k}, moved{k})"]


def _momentum(lines: list[str], a: dict[str, float], mode: str, dtypes: Sequence[int]) -> None:
    lines += [_double("beta", a["beta"]), "weight = Where(later, beta, one)"]
    for k, dtype in enumerate(dtypes):
        _regularized(lines, k, dtype, a)
        lines += [f"w{k} = Cast<to = {dtype}>(weight)", f"part{k} = Mul(w{k}, g{k})"]
        _average(lines, "V", k, dtype, a["alpha"], f"part{k}")
        way = f"Vn{k}"
        if mode == "nesterov":
            lines += [f"ahead{k} = Mul(keepV{k}, Vn{k})", f"way{k} = Add(g{k}, ahead{k})"]
            way = f"way{k}"
        lines += [f"r{k} = Cast<to = {dtype}>(rd)", f"step{k} = Mul(r{k}, {way})", f"Xn{k} = Sub(X{k}, step{k})"]


def _adagrad(lines: list[str], a: dict[str, float], mode: str, dtypes: Sequence[int]) -> None:
    lines += [_double("decay", a["decay_factor"]), "grown = Mul(td, decay)", "by = Add(one, grown)",
              "rate = Div(rd, by)"]
    for k, dtype in enumerate(dtypes):
        _regularized(lines, k, dtype, a)
        _number(lines, f"eps{k}", a["epsilon"], dtype)
        lines += [f"square{k} = Mul(g{k}, g{k})", f"Hn{k} = Add(H{k}, square{k})", f"sqrt{k} = Sqrt(Hn{k})",
                  f"by{k} = Add(sqrt{k}, eps{k})", f"r{k} = Cast<to = {dtype}>(rate)", f"far{k} = Mul(r{k}, g{k})",
                  f"step{k} = Div(far{k}, by{k})", f"Xn{k} = Sub(X{k}, step{k})"]


# How to write a step, and what it keeps of each parameter: averages of gradients (V) and of squares (H).
_Step = Callable[[list[str], dict[str, float], str, Sequence[int]], None]
_STEPS: dict[str, tuple[_Step, str]] = {"Adam": (_adam, "VH"), "Momentum": (_momentum, "V"), "Adagrad": (_adagrad, "H")}
