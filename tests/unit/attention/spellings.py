"""Attention as exporters write it: layouts, scales, masks, guards and softmaxes freely composed, answers in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.unit.attention import computed_masks
from tests.unit.attention.computed_masks import COMPUTED

Array = np.ndarray[Any, Any]
MIN = float(np.finfo(np.float32).min)
LAYOUTS = ("heads", "merged", "batched", "grouped", "packed", "einsum")
SCALES = ("after", "divide", "query", "split", "none", "cast")
REPEATS = ("expand", "concat", "tile")  # how grouped heads are repeated
MASKS = ("none", "causal-inf", "causal-min", "causal-1e4", "causal-where", "causal-keep", "causal-multiply", "random",
         "positions", "window", *COMPUTED, "padding", "padding-bool", "causal+padding", "bias", "softcap", "alibi",
         "blocks")
SOFTMAXES = ("op", "spelled", "guarded", "log", "logsumexp", "plain")
AFTER = "after"  # masked after the softmax, and divided by the sum again
SIZED_BY_CONSTANTS = ("causal-inf", "causal-min", "causal-1e4", "causal-where", "causal-keep", "causal-multiply",
                      "causal+padding", "alibi", "blocks", "random")
# Masks that leave no finite number between a key and being hidden: another mask may follow the softmax.
EXACT_MASKS = ("none", "causal-keep", "positions", "window", "softcap", "padding-bool", *COMPUTED)


@dataclass
class Spelling:
    """One attention. `symbolic`: batch and sequence are named dims. `right`: the weights are the right operand."""

    batch: int = 1
    heads: int = 2
    queries: int = 9
    keys: int = 9
    depth: int = 8
    width: int = 8
    layout: str = "heads"
    scale: str = "after"
    mask: str = "none"
    softmax: str = "op"
    symbolic: bool = False
    opset: int = 18
    window: int = 3
    repeat: str = "expand"
    right: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inits: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, tuple[list[Any], int]] = field(default_factory=dict)

    # -- graph ------------------------------------------------------------------------------------------------
    def add(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"node_{name}", **attributes))
        return name

    def const(self, name: str, value: Any) -> str:
        self.inits[name] = np.asarray(value)
        return name

    @property
    def groups(self) -> int:
        return 2 if self.layout == "grouped" else 1

    def dims(self) -> tuple[Any, Any, Any]:
        if not self.symbolic:
            return self.batch, self.queries, self.keys
        return "b", "s", "s" if self.layout == "packed" or self.queries == self.keys else "t"

    def model(self) -> onnx.ModelProto:
        self.nodes, self.inits, self.inputs = [], {}, {}
        q, k, v = getattr(self, f"_{self.layout}")()
        out = self._core(q, k, v)
        out = self._finish(out)
        infos = [helper.make_tensor_value_info(n, kind, shape) for n, (shape, kind) in self.inputs.items()]
        graph = helper.make_graph(self.nodes, "g", infos, [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(a, n) for n, a in self.inits.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        shaped = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        if self.symbolic:  # inference alone does not see through every reshape
            shaped.graph.output[0].CopyFrom(helper.make_tensor_value_info(out, TensorProto.FLOAT, None))
        return shaped

    def _heads(self) -> tuple[str, str, str]:
        b, s, t = self.dims()
        self.inputs |= {"q": ([b, self.heads, s, self.depth], 1), "k": ([b, self.heads, t, self.depth], 1),
                        "v": ([b, self.heads, t, self.width], 1)}
        return "q", self.add("Transpose", ["k"], "kt", perm=[0, 1, 3, 2]), "v"

    def _merged(self) -> tuple[str, str, str]:
        """[batch, sequence, heads * depth], split by Reshape and Transpose, the keys by one permutation."""
        b, s, t = self.dims()
        made = []
        for name, length, size, perm in (("q", s, self.depth, [0, 2, 1, 3]), ("k", t, self.depth, [0, 2, 3, 1]),
                                         ("v", t, self.width, [0, 2, 1, 3])):
            self.inputs[name] = [b, length, self.heads * size], 1
            self.const(f"{name}_shape", np.array([0, 0, self.heads, size]))
            self.add("Reshape", [name, f"{name}_shape"], f"{name}_heads")
            made.append(self.add("Transpose", [f"{name}_heads"], f"{name}_split", perm=perm))
        return made[0], made[1], made[2]

    def _batched(self) -> tuple[str, str, str]:
        """Batch and heads are one dim of the operands."""
        b, s, t = self.dims()
        assert not self.symbolic
        for name, length, size in (("q", s, self.depth), ("k", t, self.depth), ("v", t, self.width)):
            self.inputs[name] = [b * self.heads, length, size], 1
        return "q", self.add("Transpose", ["k"], "kt", perm=[0, 2, 1]), "v"

    def _grouped(self) -> tuple[str, str, str]:
        """Two query heads share a key head: Unsqueeze, Expand, Reshape."""
        b, s, t = self.dims()
        shared = self.heads
        self.inputs["q"] = [b, shared * 2, s, self.depth], 1
        made = []
        for name, size in (("k", self.depth), ("v", self.width)):
            self.inputs[name] = [b, shared, t, size], 1
            self.const("axis2", np.array([2]))
            self.add("Unsqueeze", [name, "axis2"], f"{name}_one")
            if self.repeat != "expand" and not self.symbolic:
                if self.repeat == "concat":
                    self.add("Concat", [f"{name}_one", f"{name}_one"], f"{name}_two", axis=2)
                else:
                    self.add("Tile", [f"{name}_one", self.const("twice", np.array([1, 1, 2, 1, 1]))], f"{name}_two")
                self.const(f"{name}_shape", np.array([self.batch, shared * 2, self.keys, size]))
                made.append(self.add("Reshape", [f"{name}_two", f"{name}_shape"], f"{name}_all"))
                continue
            self.const(f"{name}_times", np.array([1, 1, 2, 1, 1]))
            self.add("Expand", [f"{name}_one", f"{name}_times"], f"{name}_two")
            if self.symbolic:
                self.add("Shape", [name], f"{name}_dims")
                self.const("index0", np.array([0]))
                self.const("index2", np.array([2]))
                self.const("all_heads", np.array([shared * 2]))
                self.const(f"{name}_size", np.array([size]))
                self.add("Gather", [f"{name}_dims", "index0"], f"{name}_b")
                self.add("Gather", [f"{name}_dims", "index2"], f"{name}_t")
                self.add("Concat", [f"{name}_b", "all_heads", f"{name}_t", f"{name}_size"], f"{name}_shape", axis=0)
            else:
                self.const(f"{name}_shape", np.array([self.batch, shared * 2, self.keys, size]))
            made.append(self.add("Reshape", [f"{name}_two", f"{name}_shape"], f"{name}_all"))
        return "q", self.add("Transpose", [made[0]], "kt", perm=[0, 1, 3, 2]), made[1]

    def _packed(self) -> tuple[str, str, str]:
        """One input holds queries, keys and values."""
        assert self.depth == self.width
        assert self.queries == self.keys
        b, s, _ = self.dims()
        self.inputs["qkv"] = [b, s, 3 * self.heads * self.depth], 1
        self.const("qkv_shape", np.array([0, 0, 3, self.heads, self.depth]))
        self.add("Reshape", ["qkv", "qkv_shape"], "five")
        self.add("Transpose", ["five"], "stacked", perm=[2, 0, 3, 1, 4])
        made = []
        for index, name in enumerate("qkv"):
            self.const(f"pick{index}", np.array(index))
            made.append(self.add("Gather", ["stacked", f"pick{index}"], f"{name}_one", axis=0))
        return made[0], self.add("Transpose", [made[1]], "kt", perm=[0, 1, 3, 2]), made[2]

    def _einsum(self) -> tuple[str, str, str]:
        b, s, t = self.dims()
        for name, length, size in (("q", s, self.depth), ("k", t, self.depth), ("v", t, self.width)):
            self.inputs[name] = [b, length, self.heads, size], 1
        return "q", "k", "v"

    def _core(self, q: str, k: str, v: str) -> str:
        factor = self.depth ** -0.5
        if self.scale in ("query", "split"):
            self.const("part", np.float32(factor if self.scale == "query" else factor ** 0.5))
            q = self.add("Mul", [q, "part"], "q_scaled")
            if self.scale == "split":
                k = self.add("Mul", [k, "part"], "k_scaled")
        if self.layout == "einsum":
            x = self.add("Einsum", [q, k], "scores", equation="bihd,bjhd->bhij")
        else:
            x = self.add("MatMul", [q, k], "scores")
        if self.layout == "batched" and self.mask != "none":
            self.const("four", np.array([self.batch, self.heads, self.queries, self.keys]))
            x = self.add("Reshape", [x, "four"], "scores4")
        if self.scale == "after":
            x = self.add("Mul", [x, self.const("factor", np.float32(factor))], "scaled")
        elif self.scale == "cast":  # an upcast that the exporter kept
            x = self.add("Cast", [self.add("Mul", [x, self.const("factor", np.float32(factor))], "scaled")], "upcast",
                         to=TensorProto.FLOAT)
        elif self.scale == "divide":
            x = self.add("Div", [x, self.const("factor", np.float32(1 / factor))], "scaled")
        x = self._modify(x)
        if self.layout == "batched" and self.mask != "none":
            self.const("three", np.array([self.batch * self.heads, self.queries, self.keys]))
            x = self.add("Reshape", [x, "three"], "masked3")
        p = self._soft(x)
        if self.layout == "einsum":
            return self.add("Einsum", [v, p] if self.right else [p, v], "product",
                            equation="bjhe,bhij->bihe" if self.right else "bhij,bjhe->bihe")
        return self.add("MatMul", [p, v], "product")

    def _soft(self, x: str) -> str:
        if self.softmax == "spelled":
            self.add("ReduceMax", [x, self.const("last", np.array([-1]))] if self.opset >= 18 else [x], "peak",
                     keepdims=1, **({} if self.opset >= 18 else {"axes": [-1]}))
            self.add("Exp", [self.add("Sub", [x, "peak"], "shifted")], "powers")
            self.add("ReduceSum", ["powers", self.const("last", np.array([-1]))], "total", keepdims=1)
            return self.add("Div", ["powers", "total"], "weights")
        if self.softmax == "log":
            return self.add("Exp", [self.add("LogSoftmax", [x], "logs", axis=-1)], "weights")
        if self.softmax == "logsumexp":
            self.add("ReduceLogSumExp", [x, self.const("last", np.array([-1]))] if self.opset >= 18 else [x], "all",
                     keepdims=1, **({} if self.opset >= 18 else {"axes": [-1]}))
            return self.add("Exp", [self.add("Sub", [x, "all"], "logs")], "weights")
        if self.softmax == "plain":
            self.add("Exp", [x], "powers")
            self.add("ReduceSum", ["powers", self.const("last", np.array([-1]))], "total", keepdims=1)
            return self.add("Div", ["powers", "total"], "weights")
        p = self.add("Softmax", [x], "weights", axis=-1)
        if self.softmax == AFTER:
            keep = self.const("keep", self.kept()[None, None] if self.layout != "batched" else self.kept()[None])
            self.add("Mul", [p, self.add("Cast", [keep], "number", to=TensorProto.FLOAT)], "kept_weights")
            self.add("ReduceSum", ["kept_weights", self.const("last", np.array([-1]))], "kept_total", keepdims=1)
            return self.add("Div", ["kept_weights", "kept_total"], "again")
        if self.softmax == "guarded":
            self.add("IsNaN", [p], "bad")
            p = self.add("Where", ["bad", self.const("nought", np.float32(0)), p], "safe")
        return p

    def _finish(self, out: str) -> str:
        if self.layout in ("merged", "packed"):
            self.add("Transpose", [out], "unsplit", perm=[0, 2, 1, 3])
            self.const("out_shape", np.array([0, 0, self.heads * self.width]))
            return self.add("Reshape", ["unsplit", "out_shape"], "out")
        return out

    def kept(self) -> Array:
        """What a mask after the softmax keeps: the first key is always there."""
        keep = np.random.default_rng(5).random((self.queries, self.keys)) < 0.6
        keep[:, 0] = True
        return keep

    # -- masks ------------------------------------------------------------------------------------------------
    def allowed(self) -> Array:
        i, j = np.arange(self.queries)[:, None], np.arange(self.keys)[None]
        if self.mask == "window":
            return np.asarray((j <= i) & (j > i - self.window))
        if self.mask in COMPUTED:
            return computed_masks.allowed(self.mask, i, j, self.window)
        if self.mask == "blocks":
            return np.asarray(((i // 4 + j // 4) % 3 != 1) | (j == 0))
        if self.mask == "random":
            return np.asarray((np.random.default_rng(6).random((self.queries, self.keys)) < 0.3) | (j == 0))
        return np.asarray(j <= i)

    def _modify(self, x: str) -> str:
        for part in self.mask.split("+"):
            x = self._one(part, x)
        return x

    def _one(self, mask: str, x: str) -> str:
        b, s, t = self.dims()
        allowed = self.allowed()[None, None]
        match mask:
            case "none":
                return x
            case "causal-1e4":
                self.const("mask", np.where(allowed, 0, -1e4).astype(np.float32))
                return self.add("Add", [x, "mask"], "masked")
            case "causal-keep":
                self.const("shown", allowed)
                return self.add("Where", ["shown", x, self.const("low", np.float32(-np.inf))], "masked")
            case "causal-inf" | "causal" | "blocks" | "random":
                self.const("mask", np.where(allowed, 0, -np.inf).astype(np.float32))
                return self.add("Add", [x, "mask"], "masked")
            case "causal-min":
                self.const("mask", np.where(allowed, 0, MIN).astype(np.float32))
                return self.add("Add", ["mask", x], "masked")
            case "causal-where":
                self.const("hidden", ~allowed)
                return self.add("Where", ["hidden", self.const("low", np.float32(MIN)), x], "masked")
            case "causal-multiply":
                self.const("mask", allowed.astype(np.float32))
                self.add("Mul", [x, "mask"], "kept")
                self.add("Mul", [self.add("Sub", [self.const("one", np.float32(1)), "mask"], "rest"),
                                 self.const("large", np.float32(1e9))], "penalty")
                return self.add("Sub", ["kept", "penalty"], "masked")
            case "positions" | "window":
                return self._positions(mask, x)
            case _ if mask in COMPUTED:
                return self._positions(mask, x)
            case "padding":
                self.inputs["padding"] = [b, 1, 1, t], TensorProto.FLOAT
                return self.add("Add", [x, "padding"], "padded")
            case "padding-bool":
                self.inputs["present"] = [b, t], TensorProto.BOOL
                self.add("Unsqueeze", ["present", self.const("axes", np.array([1, 2]))], "present4")
                return self.add("Where", ["present4", x, self.const("low", np.float32(-np.inf))], "padded")
            case "bias":
                self.inputs["bias"] = [1, self.heads * self.groups, s, t], TensorProto.FLOAT
                return self.add("Add", [x, "bias"], "biased")
            case "softcap":
                self.const("cap", np.float32(2))
                self.add("Tanh", [self.add("Div", [x, "cap"], "divided")], "tanh")
                return self.add("Mul", ["tanh", "cap"], "capped")
            case "alibi":
                heads = self.heads * self.groups
                slopes = (2.0 ** -np.arange(1, heads + 1)).astype(np.float32)
                distance = np.arange(self.keys)[None] - np.arange(self.queries)[:, None]
                self.const("alibi", slopes[:, None, None] * distance.astype(np.float32)[None])
                return self.add("Add", [x, "alibi"], "biased")
        raise ValueError(mask)

    def _positions(self, mask: str, x: str) -> str:
        """A mask that the graph computes: Range, Unsqueeze, compare."""
        for name, size, axis in (("rows", self.queries, 2), ("columns", self.keys, 3)):
            if self.symbolic:
                self.add("Shape", [x], f"{name}_shape")
                limit = self.add("Gather", [f"{name}_shape", self.const(f"{name}_axis", np.array(axis))], f"{name}_end")
            else:
                limit = self.const(f"{name}_end", np.array(size))
            self.add("Range", [self.const("zero", np.array(0)), limit, self.const("step", np.array(1))], name)
        self.add("Unsqueeze", ["rows", self.const("axis1", np.array([1]))], "column")
        if mask in COMPUTED:
            allowed = computed_masks.spell(mask, self.add, self.const, self.window)
        else:
            allowed = self.add("LessOrEqual", ["columns", "column"], "before")
        if mask == "window":
            self.add("Sub", ["column", self.const("window", np.array(self.window))], "oldest")
            allowed = self.add("And", [allowed, self.add("Greater", ["columns", "oldest"], "recent")], "near")
        return self.add("Where", [allowed, x, self.const("low_inf", np.float32(-np.inf))], "masked")

    # -- answers ----------------------------------------------------------------------------------------------
    def feeds(self, seed: int = 0, **sizes: int) -> dict[str, Array]:
        """Inputs; `sizes` binds the named dims b, s and t."""
        rng = np.random.default_rng(seed)
        bound = {"b": self.batch, "s": self.queries, "t": self.keys} | sizes
        made: dict[str, Array] = {}
        for name, (shape, kind) in self.inputs.items():
            dims = [bound[d] if isinstance(d, str) else d for d in shape]
            value = rng.standard_normal(dims).astype(np.float32)
            if kind == TensorProto.BOOL:
                made[name] = np.asarray(value < 0.8)
                made[name][..., 0] = True
            elif name == "padding":
                made[name] = np.where(value < 0.8, 0, MIN).astype(np.float32)
                made[name][..., 0] = 0
            else:
                made[name] = value
        return made

    def answer(self, feeds: dict[str, Array]) -> Array:
        """float64; the masks' own arithmetic in float32, where the finite ones round."""
        q, k, v = self._split(feeds)
        x = (q.astype(np.float64) @ np.swapaxes(k, -1, -2)) * (1 if self.scale == "none" else self.depth ** -0.5)
        self_queries, self_keys = self.queries, self.keys
        self.queries, self.keys = x.shape[-2:]
        for part in self.mask.split("+"):
            x = self._masked(part, x, feeds)
        self.queries, self.keys = self_queries, self_keys
        with np.errstate(invalid="ignore"):
            e = np.exp(x - x.max(-1, keepdims=True))
            p = e / e.sum(-1, keepdims=True)
        if self.softmax == "guarded":
            p = np.where(np.isnan(p), 0, p)
        if self.softmax == AFTER:
            p = p * self.kept()
            p = p / p.sum(-1, keepdims=True)
        out = np.asarray(p @ v)
        if self.layout in ("merged", "packed"):
            b, h, s, e_ = out.shape
            return out.transpose(0, 2, 1, 3).reshape(b, s, h * e_)
        if self.layout == "einsum":
            return out.transpose(0, 2, 1, 3)
        return out.reshape(-1, *out.shape[2:]) if self.layout == "batched" else out

    def _split(self, feeds: dict[str, Array]) -> tuple[Array, Array, Array]:
        if self.layout == "packed":
            b, s, _ = feeds["qkv"].shape
            q, k, v = feeds["qkv"].reshape(b, s, 3, self.heads, self.depth).transpose(2, 0, 3, 1, 4)
            return q, k, v
        q, k, v = (feeds[name] for name in "qkv")
        if self.layout == "merged":
            q, k, v = (a.reshape(*a.shape[:2], self.heads, -1).transpose(0, 2, 1, 3) for a in (q, k, v))
        if self.layout == "einsum":
            q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
        if self.layout == "batched":
            q, k, v = (a.reshape(self.batch, self.heads, *a.shape[1:]) for a in (q, k, v))
        if self.layout == "grouped":
            k, v = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
        return q, k, v

    def _masked(self, mask: str, x: Array, feeds: dict[str, Array]) -> Array:
        allowed = self.allowed()
        match mask:
            case "causal-inf" | "causal" | "blocks" | "positions" | "window" | "random" | "causal-keep":
                return np.where(allowed, x, -np.inf)
            case _ if mask in COMPUTED:
                return np.where(allowed, x, -np.inf)
            case "causal-min":
                return np.where(allowed, x, np.float64(MIN))
            case "causal-1e4":
                return np.asarray(np.where(allowed, x, x - 1e4))
            case "causal-where":
                return np.where(allowed, x, np.float64(MIN))
            case "causal-multiply":
                return x * allowed - 1e9 * (1 - allowed)
            case "padding":
                return np.asarray(np.where(feeds["padding"] < 0, np.float64(MIN), x))
            case "padding-bool":
                return np.asarray(np.where(feeds["present"][:, None, None], x, -np.inf))
            case "bias":
                return np.asarray(x + feeds["bias"])
            case "softcap":
                return np.asarray(np.tanh(x / 2) * 2)
            case "alibi":
                return np.asarray(x + self.inits["alibi"])
        return x
