"""Unique names for nodes, values and the extents of graph inputs: diagnostics and later passes rely on them."""

from __future__ import annotations

import re
from collections.abc import Callable

import onnx_ir as ir

from tilegraph.io.walk import all_graphs, values_of
from tilegraph.spec.dims import Dim

# What exporters write for "some extent". Two of them are not meant to be equal.
_UNNAMED = frozenset(("", "?", "-1", "*", "None", "none", "null", "unk", "unknown"))


def unique_name(wanted: str, used: set[str]) -> str:
    """`wanted`, or `wanted_N` with the smallest N from 1 that is free; the answer is added to `used`."""
    name, n = wanted, 0
    while name in used:
        n += 1
        name = f"{wanted}_{n}"
    used.add(name)
    return name


def fix_names(model: ir.Model) -> bool:
    """Gives every node and every used value a name that is unique in the model, nested graphs included.

    The names of graph inputs, outputs and main initializers stay. An unused output without a name stays without: the
    name is what makes an optional output present. Each function is a scope of its own. Returns whether anything
    changed.
    """
    changed = _fix_scope(list(all_graphs(model)), model.graph)
    for function in model.functions.values():
        inner = [function.graph, *function.subgraphs()]
        changed |= _fix_scope(inner, function.graph)
    return changed


def _fix_scope(graphs: list[ir.Graph], root: ir.Graph) -> bool:
    changed = False
    used: set[str] = set()
    settled: set[ir.Value] = set()
    for value in (*root.inputs, *root.outputs, *root.initializers.values()):
        if value not in settled and value.name:
            settled.add(value)
            used.add(value.name)
    nodes: set[str] = set()
    # Names that are there already win over names that are made up here.
    taken = used | {v.name for g in graphs for v in values_of(g) if v.name}
    node_names = {n.name for g in graphs for n in g if n.name}
    for graph in graphs:
        for value in list(values_of(graph)):  # a new name moves an initializer in its dict
            if value in settled:
                continue
            settled.add(value)
            if value.name and value.name not in used:
                used.add(value.name)
            elif value.name or value.uses() or value.is_graph_output():
                value.name = _fresh(value.name or "value", used, taken)
                changed = True
        for node in graph:
            if node.name and node.name not in nodes:
                nodes.add(node.name)
            else:
                node.name = _fresh(node.name or node.op_type, nodes, node_names)
                changed = True
    return changed


def _fresh(wanted: str, used: set[str], taken: set[str]) -> str:
    name = unique_name(wanted, taken)
    used.add(name)
    return name


def name_dims(model: ir.Model) -> dict[str, str]:
    """Makes every extent of a graph input an integer, a symbol, or a sum of symbols and integers that others name.

    Unnamed extents get a symbol of their own (`x_d1` for axis 1 of input x). Names that do not survive
    `str(Dim.of(name))`, such as "batch size" or "past + 1" where `past + 1` may not be meant as a sum, become one
    plain symbol. Later mentions of the same text follow. Returns the original text of each renamed extent -> the new.
    """
    texts = [t for v in model.graph.inputs if v.shape is not None for d in v.shape if (t := extent_name(d)) is not None]
    symbols = {t for t in texts if _is_symbol(t)}
    renamed: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        if text in symbols or text in renamed:
            continue
        dim = Dim.of(text)
        is_sum = bool(dim.symbols) and dim.symbols <= symbols and all(c > 0 for _, c in dim.terms)
        constant = next((c for m, c in dim.terms if not m), 0)
        holds = is_sum and (not constant or _tokens_are(model, constant, text))
        renamed[text] = str(dim) if holds else unique_name(_plain(text), symbols)
    for value in model.graph.inputs:
        _update(value, lambda axis, dim, name=value.name: (  # type: ignore[misc]
            unique_name(_plain(f"{name}_d{axis}"), symbols) if _is_unknown(dim) else dim))

    def follow(_: int, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim | str | None:
        if isinstance(dim, int) or _is_unknown(dim):
            return None if _is_unknown(dim) else dim
        text = str(dim.value)
        if text in renamed:
            return renamed[text]
        expression = Dim.of(text)
        if expression.symbols <= symbols:
            as_int = expression.as_int()
            return str(expression) if as_int is None else as_int
        return text if _is_symbol(text) else None

    for graph in all_graphs(model):
        for value in values_of(graph):
            if value.const_value is None:
                _update(value, follow)
    return renamed


def _tokens_are(model: ir.Model, count: int, text: str) -> bool:
    """Whether every sequence of tokens among the inputs has `count` of them.

    A decoder's mask of "past + 1" is the sum that it says only then: exporters also write it for decoders that take
    any number of tokens. Sequences of tokens are the matrices of integers [batch, tokens] and the embeddings
    [batch, tokens, width].
    """
    integers = (ir.DataType.INT32, ir.DataType.INT64)
    shapes = [(v.shape, v.dtype in integers) for v in model.graph.inputs if v.shape is not None]
    lengths = [shape[1] for shape, whole in shapes if len(shape) == (2 if whole else 3)]
    return count in lengths and all(n == count or extent_name(n) == text for n in lengths)


def _is_symbol(text: str) -> bool:
    """Whether `text` is one symbol that also survives in a longer expression."""
    return Dim.of(f"{text}+1") == Dim.symbol(text) + 1


def _is_unknown(dim: int | ir.SymbolicDim) -> bool:
    return dim < 0 if isinstance(dim, int) else extent_name(dim) is None


def extent_name(dim: int | ir.SymbolicDim) -> str | None:
    """The name of a symbolic extent, None for integers and for what means "some extent"."""
    if isinstance(dim, int) or dim.value is None or dim.value.strip() in _UNNAMED:
        return None
    return dim.value


def _plain(text: str) -> str:
    spelled = text.replace("+", "_plus_").replace("*", "_times_").replace("/", "_over_").replace("-", "_")
    name = re.sub(r"_+", "_", re.sub(r"\W+", "_", spelled)).strip("_") or "dim"
    return f"d{name}" if name[0].isdigit() else name


def _update(
    value: ir.Value, change: Callable[[int, int | ir.SymbolicDim], int | ir.SymbolicDim | str | None]
) -> bool:
    if value.shape is None:
        return False
    dims = [change(i, d) for i, d in enumerate(value.shape)]
    if all(a == b for a, b in zip(dims, value.shape, strict=True)):
        return False
    value.shape = ir.Shape(dims)
    return True


def substitute_dims(model: ir.Model, binding: dict[str, Dim]) -> bool:
    """Replaces symbols by other dims in every shape, nested graphs included. Returns whether any changed."""

    def bind(_: int, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim | str | None:
        if isinstance(dim, int) or dim.value is None:
            return dim
        expression = Dim.of(str(dim.value))
        if not expression.symbols & binding.keys():
            return dim
        bound = expression.substitute(dict(binding))
        as_int = bound.as_int()
        if as_int is not None:
            return as_int if as_int >= 0 else None
        return str(bound)

    changed = False
    for graph in all_graphs(model):
        for value in values_of(graph):
            if value.const_value is None or value.is_graph_input():
                changed |= _update(value, bind)
    return changed
