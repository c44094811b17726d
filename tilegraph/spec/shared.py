"""Expressions that a program's JSON says more than once, by name.

Places in an arena of symbolic sizes are sums of dozens of products, and each call has several: written out they were
500 of 538 KB of the manifest of PP-OCR's detector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SHORT = 16  # characters: a name would save nothing
_LARGEST = 1 << 22  # operations of a program with every name written out; compilers write some ten thousand
_SIZES = ("extent", "grain", "scratch")


def share(program: dict[str, Any]) -> dict[str, Any]:
    """`program` (`Program.to_json`) with a list `named` of [name, expression], each of which uses earlier names only,
    and the names in place of the expressions. Shapes of inputs and outputs, and rounds, come before and keep theirs.
    """
    pool = _Pool()
    roots = [(holder, key, pool.add(holder[key])) for holder, key in _expressions(program)]
    for _, _, root in roots:
        pool.use(root)
    prefix = "@"
    while any(name.startswith(prefix) for name in _symbols(program)):
        prefix += "@"
    for number in pool.often():
        pool.names[number] = f"{prefix}{len(pool.names)}"
    for holder, key, root in roots:
        holder[key] = pool.written(root)
    named = [[name, pool.definition(number)] for number, name in pool.names.items()]
    return {**program, "named": named} if named else program


@dataclass(frozen=True)
class _At:
    """An operation in the pool."""

    number: int


class _Pool:
    """Distinct operations, operands before what is made of them, and how often each is used."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, ...]] = []
        self.lengths: list[int] = []
        self.uses: list[int] = []
        self.names: dict[int, str] = {}
        self._known: dict[tuple[Any, ...], _At] = {}

    def add(self, expression: Any) -> Any:
        """An `_At`; symbols and numbers as they are."""
        if not isinstance(expression, list):
            return expression
        operation = (expression[0], *map(self.add, expression[1:]))
        found = self._known.get(operation)
        if found is None:
            found = self._known[operation] = _At(len(self.operations))
            self.operations.append(operation)
            self.uses.append(0)
            self.lengths.append(sum(self.lengths[o.number] if isinstance(o, _At) else len(str(o)) + 1
                                    for o in operation))
            for operand in operation[1:]:
                self.use(operand)
        return found

    def use(self, operand: Any) -> None:
        if isinstance(operand, _At):
            self.uses[operand.number] += 1

    def often(self) -> list[int]:
        return [n for n, (uses, length) in enumerate(zip(self.uses, self.lengths, strict=True))
                if uses > 1 and length >= _SHORT]

    def written(self, operand: Any) -> Any:
        if not isinstance(operand, _At):
            return operand
        return self.names.get(operand.number) or self.definition(operand.number)

    def definition(self, number: int) -> list[Any]:
        symbol, *operands = self.operations[number]
        return [symbol, *map(self.written, operands)]


def expand(program: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `share`. Raises `ValueError` where names are given twice or stand for more than programs hold."""
    if "named" not in program:
        return program
    meaning: dict[str, Any] = {}
    size: dict[str, int] = {}

    def operations(expression: Any) -> int:
        if isinstance(expression, list):
            return 1 + sum(map(operations, expression[1:]))
        return size.get(expression, 0) if isinstance(expression, str) else 0

    def written(expression: Any) -> Any:
        if isinstance(expression, list):
            return [expression[0], *map(written, expression[1:])]
        return meaning.get(expression, expression) if isinstance(expression, str) else expression

    for name, expression in program["named"]:
        if not isinstance(name, str) or name in meaning:
            raise ValueError(f"{name!r} is no new name of an expression")
        size[name] = operations(expression)
        if size[name] > _LARGEST:
            raise ValueError(f"the expression {name!r} has more than {_LARGEST} operations")
        meaning[name] = written(expression)  # lists are shared, not copied
    calls = [{**c, "args": [list(a) for a in c["args"]], "sizes": list(c["sizes"])} for c in program["calls"]]
    found = {**program, "arena": dict(program["arena"]), "equal": [list(pair) for pair in program.get("equal", [])],
             "calls": calls}
    del found["named"]
    if sum(operations(holder[key]) for holder, key in _expressions(found)) > _LARGEST:
        raise ValueError(f"its expressions have more than {_LARGEST} operations")
    for holder, key in _expressions(found):
        holder[key] = written(holder[key])
    return found


def _expressions(program: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Where the expressions are that may be named: a dict or list, and the key."""
    yield program["arena"], "bytes"
    for call in program["calls"]:
        yield from ((slot, n) for slot in call["args"] for n in range(1, len(slot)))
        yield from ((call["sizes"], n) for n in range(len(call["sizes"])))
        yield from ((call, key) for key in _SIZES)
    yield from ((pair, n) for pair in program.get("equal", []) for n in range(len(pair)))


def _symbols(program: dict[str, Any]) -> set[str]:
    """Every string that an expression of the program has, which may be an operation's."""
    found: set[str] = set()

    def collect(expression: Any) -> None:
        if isinstance(expression, str):
            found.add(expression)
        elif isinstance(expression, list):
            for operand in expression:
                collect(operand)

    for holder, key in _expressions(program):
        collect(holder[key])
    for tensor in (*program["inputs"], *program["outputs"]):
        collect(tensor["shape"])
    for rounds in program.get("rounds", []):
        collect([rounds["name"], rounds["items"], rounds["step"]])
    return found
