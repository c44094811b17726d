"""Random graphs of what regions are made of, as a hypothesis strategy.

A graph is built node by node; every value is evaluated at once, so that a node whose results leave the range of its
dtype is not taken. Operations that jump (comparisons, rounding, float to int) only read values that any evaluation
computes exactly, because rounding may otherwise decide differently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from hypothesis import strategies as st

from tests.numeric.codegen.reference import Array, Evaluator, widened
from tilegraph.spec.dims import Dim, Shape

D = ir.DataType
FLOATS = (D.FLOAT, D.FLOAT, D.FLOAT, D.FLOAT16, D.BFLOAT16, D.DOUBLE)
INTS = (D.INT64, D.INT32, D.INT8, D.UINT8)
LIMIT = {D.FLOAT: 1e6, D.DOUBLE: 1e6, D.FLOAT16: 1e4, D.BFLOAT16: 1e6}
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64, 65)
UNARY = ("Exp", "Tanh", "Erf", "Sigmoid", "Softplus", "Gelu", "Sin", "Sqrt", "Reciprocal", "Log")
EXACT = ("Relu", "Neg", "Abs")


@dataclass
class Val:
    """A value with its contents (floats widened), and whether every evaluation gives exactly these."""

    value: ir.Value
    shape: Shape
    array: Array
    exact: bool

    @property
    def dtype(self) -> ir.DataType:
        assert self.value.dtype is not None
        return self.value.dtype


class Graph:
    """What was drawn. (No dataclass: hypothesis would print all contents.)"""

    def __init__(self, model: ir.Model, values: dict[str, Array], binding: dict[str, int]) -> None:
        self.model = model
        self.values = values
        self.binding = binding

    def __repr__(self) -> str:
        functions = (n for f in self.model.functions.values() for n in f)
        return f"Graph({self.binding}\n" + "\n".join(map(line, (*self.model.graph, *functions))) + ")"


def line(node: ir.Node) -> str:
    """A node in one line."""

    def show(value: ir.Value | None) -> str:
        if value is None:
            return ""
        if value.const_value is not None:
            return str(value.const_value.numpy().tolist())
        return f"{value.name}:{value.dtype.name.lower() if value.dtype else ''}{value.shape}"

    attributes = ",".join(f"{a.name}={a.value}" for a in node.attributes.values() if a.name != "value")
    return f"  {','.join(map(show, node.outputs))} = {node.op_type}<{attributes}>({', '.join(map(show, node.inputs))})"


@dataclass
class Builder:
    """Draws one graph."""

    draw: Any
    symbolic: bool
    pool: list[Val] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    inputs: list[Val] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)
    binding: dict[str, int] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    # -- values -------------------------------------------------------------------------------------------------
    def dim(self) -> Dim:
        if self.symbolic and self.integer(0, 2) == 0:
            name = self.pick(("A", "B"))
            if name not in self.binding:
                self.binding[name] = int(self.pick(EXTENTS))
            return Dim.symbol(name)
        return Dim.of(self.pick(EXTENTS))

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        return tuple(d.evaluate(self.binding) for d in shape)

    def count(self, shape: Shape) -> int:
        return int(np.prod(self.sizes(shape), dtype=np.int64))

    def typed(self, name: str, dtype: ir.DataType, shape: Shape) -> ir.Value:
        dims = [d.value if d.is_static else ir.SymbolicDim(str(d)) for d in shape]
        return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims))

    def contents(self, dtype: ir.DataType, sizes: tuple[int, ...]) -> Array:
        if dtype == D.BOOL:
            return self.rng.random(sizes) < 0.5
        if dtype in INTS:
            low = 0 if dtype == D.UINT8 else -7
            return self.rng.integers(low, 8, sizes).astype(dtype.numpy())
        array = self.rng.normal(size=sizes).astype(np.float32)
        if dtype == D.BFLOAT16:
            return array.astype(ml_dtypes.bfloat16)
        return array.astype(dtype.numpy())

    def new_input(self, dtype: ir.DataType, shape: Shape) -> Val:
        value = self.typed(f"x{len(self.inputs)}", dtype, shape)
        made = Val(value, shape, widened(self.contents(dtype, self.sizes(shape))), True)
        self.inputs.append(made)
        return made

    def constant(self, array: Array) -> ir.Value:
        value = ir.Value(name=f"c{len(self.constants)}", type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                         shape=ir.Shape(array.shape), const_value=ir.tensor(array, name=f"c{len(self.constants)}"))
        self.constants.append(value)
        return value

    def emit(self, op: str, inputs: list[Any], shapes: list[Shape], dtype: ir.DataType, exact: bool,
             attrs: dict[str, Any] | None = None) -> list[Val] | None:
        """The results of a new node, or None if they are not taken."""
        outputs = [self.typed(f"v{len(self.nodes)}_{k}", dtype, shape) for k, shape in enumerate(shapes)]
        ins = [i.value if isinstance(i, Val) else i for i in inputs]
        node = ir.Node("", op, ins, ir.convenience.convert_attributes(attrs or {}), outputs=outputs,
                       name=f"{op}_{len(self.nodes)}")
        args = [i.array if isinstance(i, Val) else i.const_value.numpy() for i in inputs]
        with np.errstate(all="ignore"):
            results = Evaluator(self.binding).node(node, [widened(a) for a in args])
        limit = LIMIT.get(dtype)
        if limit is not None and not all(np.all(np.abs(r) < limit) for r in results):
            for k in range(len(ins)):
                node.replace_input_with(k, None)
            return None
        self.nodes.append(node)
        made = [Val(v, s, r, exact) for v, s, r in zip(outputs, shapes, results, strict=True)]
        for m in made:
            assert m.array.shape == self.sizes(m.shape), (op, m.array.shape, m.shape)
        self.pool += made
        return made

    # -- choosing operands ----------------------------------------------------------------------------------------
    def any_value(self, *, floats: bool = False, exact: bool = False) -> Val | None:
        fit = [v for v in self.pool if (not floats or v.dtype.is_floating_point()) and (not exact or v.exact)]
        if not fit:
            return None
        back = self.integer(0, min(len(fit), 6) - 1)  # mostly recent values
        return fit[-1 - back]

    def partner(self, x: Val, dtype: ir.DataType | None = None, exact: bool = False) -> Val:
        """Something that broadcasts with `x`."""
        dtype = dtype or x.dtype
        fit = [v for v in self.pool if v.dtype == dtype and v is not x and (v.exact or not exact)
               and self.joint(x.shape, v.shape) is not None]
        if fit and self.integer(0, 3):
            return fit[self.integer(0, len(fit) - 1)]
        if self.integer(0, 5) == 0 and dtype != D.BFLOAT16:
            scalar = self.contents(dtype, ())
            value = self.constant(np.asarray(scalar))
            return Val(value, (), widened(np.asarray(scalar)), True)
        keep = self.integer(0, len(x.shape))
        shape = tuple(Dim.of(1) if self.integer(0, 3) == 0 else d for d in x.shape[len(x.shape) - keep:])
        return self.new_input(dtype, shape)

    def joint(self, a: Shape, b: Shape) -> Shape | None:
        rank = max(len(a), len(b))
        result = []
        for x, y in zip((Dim.of(1),) * (rank - len(a)) + a, (Dim.of(1),) * (rank - len(b)) + b, strict=True):
            if x != y and x != 1 and y != 1:
                return None
            result.append(y if x == 1 else x)
        shape = tuple(result)
        return shape if self.count(shape) <= 60_000 else None

    # -- nodes ------------------------------------------------------------------------------------------------------
    def step(self) -> None:
        kind = self.pick(("unary", "unary", "binary", "binary", "binary", "view", "view", "reduce", "reduce", "norm",
                          "logic", "cast", "int", "concat", "split"))
        getattr(self, f"do_{kind}")()

    def do_unary(self) -> None:
        x = self.any_value(floats=True)
        if x is None:
            return
        op = self.pick((*UNARY, *EXACT))
        if op in EXACT:
            self.emit(op, [x], [x.shape], x.dtype, x.exact)
            return
        if x.dtype == D.DOUBLE and op in ("Gelu", "Erf"):
            op = "Tanh"  # the reference's erf is not wider than double
        if op in ("Sqrt", "Reciprocal", "Log"):
            positive = self.emit("Abs", [x], [x.shape], x.dtype, x.exact)
            assert positive
            one = self.constant(np.asarray(1.0, np.float32 if x.dtype == D.BFLOAT16 else x.dtype.numpy()))
            if x.dtype == D.BFLOAT16:
                return
            shifted = self.emit("Add", [positive[0], Val(one, (), np.asarray(1, np.longdouble), True)], [x.shape],
                                x.dtype, False)
            if shifted is None:
                return
            x = shifted[0]
        self.emit(op, [x], [x.shape], x.dtype, False)

    def do_binary(self) -> None:
        x = self.any_value(floats=True)
        if x is None:
            return
        op = self.pick(("Add", "Sub", "Mul", "Max", "Min"))
        y = self.partner(x)
        shape = self.joint(x.shape, y.shape)
        if shape is not None:
            operands = [x, y] if self.integer(0, 1) else [y, x]
            self.emit(op, operands, [shape], x.dtype, op in ("Max", "Min") and x.exact and y.exact)

    def do_int(self) -> None:
        fit = [v for v in self.pool if v.dtype in INTS]
        if not fit:
            return
        x = fit[self.integer(0, len(fit) - 1)]
        op = self.pick(("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod", "BitwiseAnd", "Neg"))
        if op == "Neg":
            if x.dtype != D.UINT8:
                self.emit(op, [x], [x.shape], x.dtype, True)
            return
        if op in ("Div", "Mod"):
            divisor = self.pick((2, 3, 7) if x.dtype == D.UINT8 else (2, -3, 7))
            y = Val(self.constant(np.asarray(divisor, x.dtype.numpy())), (), np.asarray(divisor, x.dtype.numpy()), True)
        else:
            y = self.partner(x)
        shape = self.joint(x.shape, y.shape)
        if shape is not None:
            self.emit(op, [x, y], [shape], x.dtype, True)

    def do_logic(self) -> None:
        x = self.any_value(exact=True)
        if x is None:
            return
        if x.dtype == D.BOOL:
            y = self.partner(x)
            shape = self.joint(x.shape, y.shape)
            made = shape and self.emit(self.pick(("And", "Or", "Xor")), [x, y], [shape], D.BOOL, True)
        else:
            y = self.partner(x, exact=True)
            shape = self.joint(x.shape, y.shape)
            made = shape and self.emit(self.pick(("Less", "Greater", "LessOrEqual", "Equal")), [x, y], [shape], D.BOOL,
                                       True)
        if not made:
            return
        condition = made[0]
        fit = [v for v in self.pool if v.dtype != D.BOOL and self.joint(v.shape, condition.shape) is not None]
        if fit:
            a = fit[self.integer(0, len(fit) - 1)]
            b = self.partner(a)
            both = self.joint(a.shape, b.shape)
            shape = None if both is None else self.joint(condition.shape, both)
            if shape is not None:
                self.emit("Where", [condition, a, b], [shape], a.dtype, a.exact and b.exact)

    def do_cast(self) -> None:
        x = self.any_value()
        if x is None:
            return
        targets = [D.FLOAT, D.DOUBLE, D.FLOAT16, D.BFLOAT16]
        if x.exact:
            targets += [D.INT32, D.INT64]
        to = self.pick(targets)
        if to != x.dtype and np.all(np.abs(x.array.astype(np.float64)) < 1e4):
            self.emit("Cast", [x], [x.shape], to, x.exact, {"to": int(to)})

    def do_reduce(self) -> None:
        x = self.any_value(floats=self.integer(0, 4) > 0)
        if x is None or not x.shape or x.dtype == D.BOOL:
            return
        ops = ["ReduceSum", "ReduceMax", "ReduceMin"]
        if x.dtype.is_floating_point():
            ops += ["ReduceMean", "ReduceMean", "ReduceL2", "ReduceLogSumExp"]
        elif x.dtype not in (D.INT32, D.INT64):
            return
        op = self.pick(ops)
        count = self.pick((1, 1, 1, 2)) if len(x.shape) > 1 else 1
        axes = list(range(len(x.shape) - count, len(x.shape)))
        if not self.integer(0, 2):  # any others
            axes = sorted({self.integer(0, len(x.shape) - 1) for _ in range(count)})
        keep = bool(self.integer(0, 3))
        shape = tuple(Dim.of(1) if k in axes else d for k, d in enumerate(x.shape) if keep or k not in axes)
        named = self.constant(np.asarray([a - len(x.shape) if self.integer(0, 1) else a for a in axes], np.int64))
        exact = (x.exact and op in ("ReduceMax", "ReduceMin")) or not x.dtype.is_floating_point()
        made = self.emit(op, [x, named], [shape], x.dtype, exact, {"keepdims": int(keep)})
        if made and keep and self.integer(0, 1):
            self.emit(self.pick(("Sub", "Mul", "Add")), [x, made[0]], [x.shape], x.dtype,
                      not x.dtype.is_floating_point())

    def do_norm(self) -> None:
        x = self.any_value(floats=True)
        if x is None or not x.shape:
            return
        op = self.pick(("Softmax", "LogSoftmax", "LayerNormalization"))
        if op == "LayerNormalization":
            if self.count((x.shape[-1],)) < 2:
                return  # the variance is rounding
            scale, bias = self.new_input(x.dtype, x.shape[-1:]), self.new_input(x.dtype, x.shape[-1:])
            self.emit(op, [x, scale, bias], [x.shape], x.dtype, False, {"axis": -1, "epsilon": 2.0**-7})
        else:
            axis = self.pick((-1, -1, self.integer(0, len(x.shape) - 1)))
            self.emit(op, [x], [x.shape], x.dtype, False, {"axis": axis})

    def do_view(self) -> None:
        x = self.any_value()
        if x is not None:
            getattr(self, "view_" + self.pick(("reshape", "reshape", "transpose", "slice", "expand", "gather")))(x)

    def view_reshape(self, x: Val) -> None:
        shape = self.other_shape(x.shape)
        sizes = [d.value if d.is_static else 0 if x.shape[k:k + 1] == (d,) else -1 for k, d in enumerate(shape)]
        if sizes.count(-1) > 1:
            return
        self.emit("Reshape", [x, self.constant(np.asarray(sizes, np.int64))], [shape], x.dtype, x.exact)

    def other_shape(self, shape: Shape) -> Shape:
        """Some dims joined, some static ones taken apart."""
        dims = list(shape)
        for _ in range(self.integer(1, 2)):
            if len(dims) > 1 and self.integer(0, 1):
                k = self.integer(0, len(dims) - 2)
                dims[k:k + 2] = [dims[k] * dims[k + 1]]
            else:
                k = self.integer(0, max(len(dims) - 1, 0))
                size = dims[k].as_int() if dims else None
                if size is not None:
                    factors = [f for f in (2, 3, 4, 8) if size % f == 0]
                    if factors and len(dims) < 5:
                        f = self.pick(factors)
                        dims[k:k + 1] = [Dim.of(size // f), Dim.of(f)] if self.integer(0, 1) else \
                            [Dim.of(f), Dim.of(size // f)]
                    elif len(dims) < 5:
                        dims.insert(self.integer(0, len(dims)), Dim.of(1))
        return tuple(dims)

    def view_transpose(self, x: Val) -> None:
        if len(x.shape) > 1:
            perm = list(self.draw(st.permutations(range(len(x.shape)))))
            self.emit("Transpose", [x], [tuple(x.shape[p] for p in perm)], x.dtype, x.exact, {"perm": perm})

    def view_slice(self, x: Val) -> None:
        axes = [k for k, d in enumerate(x.shape) if (d.as_int() or 0) > 1]
        if not axes:
            return
        axis = self.pick(axes)
        size = x.shape[axis].value
        step = self.pick((1, 1, 1, 2, -1)) if axis < len(x.shape) - 1 else self.pick((1, 1, 1, 1, -1))
        start = self.integer(0, size - 1)
        if step > 0:
            end = self.integer(start + 1, size)
            kept = len(range(start, end, step))
        else:
            end, kept = -size - 1, len(range(start, -1, step))
        args = [self.constant(np.asarray([v], np.int64)) for v in (start, end, axis - len(x.shape), step)]
        shape = (*x.shape[:axis], Dim.of(kept), *x.shape[axis + 1:])
        self.emit("Slice", [x, *args], [shape], x.dtype, x.exact)

    def view_expand(self, x: Val) -> None:
        dims = [self.dim() if d == 1 else d for d in x.shape]
        if len(dims) < 4 and self.integer(0, 1):
            dims.insert(0, self.dim())
        shape = tuple(dims)
        if self.count(shape) > 60_000 or not all(d.is_static for d in shape):
            return
        self.emit("Expand", [x, self.constant(np.asarray([d.value for d in shape], np.int64))], [shape], x.dtype,
                  x.exact)

    def view_gather(self, x: Val) -> None:
        axes = [k for k, d in enumerate(x.shape) if d.is_static]
        if not axes:
            return
        axis = self.pick(axes)
        at = self.integer(-x.shape[axis].value, x.shape[axis].value - 1)
        self.emit("Gather", [x, self.constant(np.asarray(at, np.int64))], [x.shape[:axis] + x.shape[axis + 1:]],
                  x.dtype, x.exact, {"axis": axis})

    def do_concat(self) -> None:
        x = self.any_value()
        if x is None or not x.shape:
            return
        axis = self.integer(0, len(x.shape) - 1)
        fit = [v for v in self.pool if v.dtype == x.dtype and len(v.shape) == len(x.shape)
               and all(a == b for k, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if k != axis)]
        parts = [x, fit[self.integer(0, len(fit) - 1)]]
        if self.integer(0, 1):
            parts.append(self.new_input(x.dtype, (*x.shape[:axis], self.dim(), *x.shape[axis + 1:])))
        total = sum((p.shape[axis] for p in parts), Dim.of(0))
        shape = (*x.shape[:axis], total, *x.shape[axis + 1:])
        if self.count(shape) <= 60_000:
            self.emit("Concat", parts, [shape], x.dtype, all(p.exact for p in parts), {"axis": axis})

    def do_split(self) -> None:
        x = self.any_value()
        axes = [] if x is None else [k for k, d in enumerate(x.shape) if (d.as_int() or 0) > 1]
        if x is None or not axes:
            return
        axis = self.pick(axes)
        size = x.shape[axis].value
        first = self.integer(1, size - 1)
        sizes = [first, size - first]
        shapes: list[Shape] = [(*x.shape[:axis], Dim.of(s), *x.shape[axis + 1:]) for s in sizes]
        self.emit("Split", [x, self.constant(np.asarray(sizes, np.int64))], shapes, x.dtype, x.exact, {"axis": axis})


@st.composite
def graphs(draw: Any, max_nodes: int = 14) -> Graph:
    """A model with one graph; `values` has the contents of every value by name (floats in extended precision)."""
    b = Builder(draw, symbolic=draw(st.booleans()))
    b.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    rank = b.integer(1, 4)
    base = tuple(b.dim() for _ in range(rank))
    while b.count(base) > 20_000:
        base = base[1:]
    b.pool.append(b.new_input(b.pick(FLOATS), base))
    if b.integer(0, 1):
        b.pool.append(b.new_input(b.pick((*FLOATS, *INTS, D.BOOL)), base))
    for _ in range(b.integer(2, max_nodes)):
        b.step()
    read = {v for node in b.nodes for v in node.inputs}
    kept = [v for v in b.pool if v.value not in read and v.value.producer() is not None]
    extra = [v for v in b.pool if v.value in read and v.value.producer() is not None and b.integer(0, 7) == 0]
    outputs = [v.value for v in (*kept, *extra)]
    used = [v.value for v in b.inputs if v.value in read]
    initializers = [c for c in b.constants if c in read]
    graph = ir.Graph(used, outputs, nodes=b.nodes, initializers=initializers, opset_imports={"": 20}, name="g")
    values = {v.value.name or "": v.array for v in (*b.inputs, *b.pool)}
    return Graph(ir.Model(graph, ir_version=10), values, b.binding)
