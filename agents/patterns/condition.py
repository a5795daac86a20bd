"""Conditions of patterns: one expression each over the facts of a situation, checked when it is read.

`rows >= 2 and row_bytes <= 32 * KiB`, `'avx512_bf16' in flags`: comparisons, `and`, `or`, `not`, arithmetic, numbers,
quoted words, tuples of them, and the names of facts. Nothing else, so that a pattern's file stays data.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType

from agents.errors import PatternError

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
ALLOWED = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Compare, ast.BinOp, ast.Constant),
    *(ast.Name, ast.Load, ast.Tuple, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod),
)


@dataclass(frozen=True)
class Condition:
    """An expression that holds or not."""

    text: str
    _code: CodeType = field(compare=False, repr=False)

    def holds(self, facts: Mapping[str, object]) -> bool:
        return bool(eval(self._code, {"__builtins__": {}}, {**UNITS, **facts}))


def parse(text: str, names: frozenset[str], place: str) -> Condition:
    """
    Args:
        names: of the facts it may use.
        place: where it stands, for messages.

    Raises:
        PatternError: it is no expression, does what conditions do not, or names no fact.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError) as error:
        raise PatternError(f"{place}: {text!r} is no expression ({error.args[0]}); write e.g. rows >= 2") from error
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise PatternError(
                f"{place}: {text!r} uses {type(node).__name__}; expected facts, numbers, words, comparisons"
            )
        if isinstance(node, ast.Name) and node.id not in names | UNITS.keys():
            raise PatternError(
                f"{place}: {text!r} names {node.id!r}; known are {', '.join(sorted(names | UNITS.keys()))}"
            )
    return Condition(text, compile(tree, place, "eval"))
