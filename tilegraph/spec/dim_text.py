"""Extents as text: what `str(dim)` writes, and what exporters, onnx_ir and sympy write for symbolic dims."""

from __future__ import annotations

import re
from typing import Any

Tree = Any  # int | str | (operator, Tree, ...)

_TOKEN = re.compile(r"\s*(//|\*\*|[-+*/%(),]|\d+|[^\s\-+*/%(),]+)")
# Functions by name, in lower case: the operator, and how many operands it has (0: any).
_FUNCTIONS = {"min": ("min", 0), "max": ("max", 0), "mod": ("%", 2), "floor": ("floor", 1), "ceiling": ("ceiling", 1)}


def read(text: str) -> Tree | None:
    """`text` as an integer, a name or (operator, operand, ...); None for what is no expression, as names such as "a b"
    or "?" that exporters give.

    Precedence is Python's. Operators: + - * // % ** with two operands, min and max with any, floor and ceiling with
    one, and /, which gives fractions: sympy writes floor(n/2 + 1/2) for (n+1)//2.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+", "", text):
        return None
    reader = _Reader([*tokens, ""])
    try:
        tree = reader.sum()
    except (ValueError, RecursionError):
        return None
    return tree if reader.next == "" else None


class _Reader:
    """Recursive descent; `next` is the token to be read. ValueError for what does not fit."""

    def __init__(self, tokens: list[str]) -> None:
        self.rest = iter(tokens)
        self.next = next(self.rest)

    def take(self, *wanted: str) -> str:
        """The next token if it is one of `wanted`, else ""."""
        if self.next not in wanted:
            return ""
        token, self.next = self.next, next(self.rest)
        return token

    def require(self, wanted: str) -> None:
        if not self.take(wanted):
            raise ValueError(f"{wanted} is missing")

    def sum(self) -> Tree:
        tree = self.product()
        while op := self.take("+", "-"):
            tree = (op, tree, self.product())
        return tree

    def product(self) -> Tree:
        tree = self.signed()
        while op := self.take("*", "//", "%", "/"):
            tree = (op, tree, self.signed())
        return tree

    def signed(self) -> Tree:
        return ("-", 0, self.signed()) if self.take("-") else self.power()

    def power(self) -> Tree:
        base = self.atom()
        return ("**", base, self.signed()) if self.take("**") else base

    def atom(self) -> Tree:
        if self.take("("):
            tree = self.sum()
            self.require(")")
            return tree
        token = self.next
        if token in ("", *"+*/%),", "//", "**"):
            raise ValueError(f"unexpected {token}")
        self.take(token)
        if token.isdigit():
            return int(token)
        return self.call(token.lower()) if self.take("(") else token

    def call(self, name: str) -> Tree:
        op, count = _FUNCTIONS.get(name, ("", 0))
        operands = [self.sum()]
        while self.take(","):
            operands.append(self.sum())
        self.require(")")
        if not op or count not in (0, len(operands)):
            raise ValueError(f"unknown function {name}")
        return (op, *operands)
