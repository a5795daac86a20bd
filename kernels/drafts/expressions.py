"""Lines of Python for recorded operations: the value of each, and how far roundings move it.

The second is running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 3.3), to first order and
without factors: every operation is off by its own result, and passes on what its operands are off by, times its slope.
Inputs are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.errors import DraftError

CALLS = {"rsqrt": "torch.rsqrt", "sqrt": "torch.sqrt", "exp": "torch.exp", "sigmoid": "torch.sigmoid"}
CALLS |= {"tanh": "torch.tanh", "silu": "functional.silu", "relu": "torch.relu", "abs": "torch.abs"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "add_": "+", "mul_": "*", "div_": "/", "sub_": "-"}
ELEMENTWISE = frozenset((*CALLS, *INFIX, "neg", "pow", "clamp", "gelu", "_to_copy", "clone"))
PRODUCTS = ("mm", "addmm", "bmm")
END = 1 << 40
"""A slice that goes on for longer goes to the end."""


@dataclass(frozen=True)
class Operand:
    """What an operation reads: an expression, and how far off it is, if at all; numbers are exact."""

    text: str
    off: str | None = None
    rank: int = 0


@dataclass(frozen=True)
class Call:
    """One operation with its arguments as text."""

    name: str
    operands: Sequence[Operand]
    """Tensors and numbers, in order."""
    literals: Sequence[Any]
    """All arguments, extents already written as expressions."""
    keywords: dict[str, Any]


def value(call: Call, *, casts: str | None) -> str:
    """What it gives.

    Args:
        casts: what the model's own dtype is written as, where casts are to be kept; None where they are left out.

    Raises:
        DraftError: drafts are not written of such an operation.
    """
    name, first = call.name, call.operands[0].text if call.operands else ""
    if name in INFIX:
        return f"{first} {INFIX[name]} {_factor(call)}"
    if name in CALLS:
        return f"{CALLS[name]}({first})"
    writer = _VALUES.get(name)
    if writer is not None:
        return writer(call)
    if name == "_to_copy":
        dtype = str(call.keywords.get("dtype", ""))
        if casts is None or not dtype:
            return first
        return f"{first}.to({'torch.float32' if dtype == 'torch.float32' else casts})"
    raise DraftError(f"operation aten.{name}: drafts cannot be written of it yet")


def _factor(call: Call) -> str:
    """The second operand; addition and subtraction may scale it."""
    alpha = call.keywords.get("alpha", 1)
    second = call.operands[1].text
    return second if alpha == 1 else f"{alpha} * {second}"


def _slice(call: Call) -> str:
    source = call.operands[0]
    dim, start, end, step = [*call.literals[1:], *[0, 0, END, 1][len(call.literals) - 1 :]][:4]
    low = "" if start in (0, "0", None) else str(start)
    high = "" if end is None or (isinstance(end, int) and end >= END) else str(end)
    piece = f"{low}:{high}" + (f":{step}" if step not in (1, "1") else "")
    place = dim % source.rank
    colons = [":"] * place if place != source.rank - 1 else ["..."]
    return f"{source.text}[{', '.join([*colons, piece])}]"


def _sizes(sizes: Any) -> str:
    return ", ".join(str(size) for size in sizes)


def _reduced(what: str) -> Callable[[Call], str]:
    def write(call: Call) -> str:
        dims = ", ".join(map(str, call.literals[1])) if len(call.literals) > 1 else ""
        keep = ", keepdim=True" if len(call.literals) > 2 and call.literals[2] else ""
        return f"{call.operands[0].text}.{what}(({dims},){keep})"

    return write


def _clamp(call: Call) -> str:
    low, high = [*call.literals[1:], None, None][:2]
    low, high = call.keywords.get("min", low), call.keywords.get("max", high)
    return f"{call.operands[0].text}.clamp({low}, {high})"


def _gelu(call: Call) -> str:
    how = call.keywords.get("approximate", "none")
    return f'functional.gelu({call.operands[0].text}, approximate="{how}")'


_VALUES: dict[str, Callable[[Call], str]] = {
    "neg": lambda c: f"-{c.operands[0].text}",
    "pow": lambda c: f"{c.operands[0].text} ** {c.literals[1]}",
    "mean": _reduced("mean"),
    "sum": _reduced("sum"),
    "amax": _reduced("amax"),
    "clamp": _clamp,
    "gelu": _gelu,
    "_softmax": lambda c: f"torch.softmax({c.operands[0].text}, {c.literals[1]})",
    "cat": lambda c: f"torch.cat(({', '.join(o.text for o in c.operands)},), {c.literals[1]})",
    "mm": lambda c: f"{c.operands[0].text} @ {c.operands[1].text}",
    "bmm": lambda c: f"{c.operands[0].text} @ {c.operands[1].text}",
    "addmm": lambda c: f"{c.operands[0].text} + {c.operands[1].text} @ {c.operands[2].text}",
    "slice": _slice,
    "select": lambda c: f"{c.operands[0].text}.select({c.literals[1]}, {c.literals[2]})",
    "split": lambda c: f"{c.operands[0].text}.split({c.literals[1]}, {[*c.literals, 0][2]})",
    "split_with_sizes": lambda c: f"{c.operands[0].text}.split(({_sizes(c.literals[1])},), {[*c.literals, 0][2]})",
    "expand": lambda c: f"{c.operands[0].text}.expand({_sizes(c.literals[1])})",
    "view": lambda c: f"{c.operands[0].text}.reshape({_sizes(c.literals[1])})",
    "_unsafe_view": lambda c: f"{c.operands[0].text}.reshape({_sizes(c.literals[1])})",
    "reshape": lambda c: f"{c.operands[0].text}.reshape({_sizes(c.literals[1])})",
    "transpose": lambda c: f"{c.operands[0].text}.transpose({c.literals[1]}, {c.literals[2]})",
    "permute": lambda c: f"{c.operands[0].text}.permute({_sizes(c.literals[1])})",
    "unsqueeze": lambda c: f"{c.operands[0].text}.unsqueeze({c.literals[1]})",
    "squeeze": lambda c: f"{c.operands[0].text}.squeeze({', '.join(map(str, c.literals[1:]))})",
    "t": lambda c: f"{c.operands[0].text}.mT",
    "detach": lambda c: c.operands[0].text,
    "alias": lambda c: c.operands[0].text,
    "clone": lambda c: c.operands[0].text,
}


def off(call: Call, result: str) -> str | None:
    """How far the result is off, given that of the operands; None if it is exact.

    Raises:
        DraftError: drafts are not written of such an operation.
    """
    name = call.name
    parts = _passed_on(call, result)
    if name in (*INFIX, *CALLS, "pow", "mean", "sum", "gelu", "_softmax"):
        parts = [f"{result}.abs()", *parts]
    if name in PRODUCTS:
        factors = call.operands[-2:]
        added = [f"{call.operands[0].text}.abs()"] if name == "addmm" else []
        parts = [*added, f"{factors[0].text}.abs() @ {factors[1].text}.abs()", *parts]
    return " + ".join(parts) or None


def _passed_on(call: Call, result: str) -> list[str]:
    """By each operand that is off."""
    name, operands = call.name, call.operands
    if name == "cat":
        shown = ", ".join(o.off or f"torch.zeros_like({o.text})" for o in operands)
        return [f"torch.cat(({shown},), {call.literals[1]})"] if any(o.off for o in operands) else []
    return [_slope(name, place, call, result) for place, operand in enumerate(operands) if operand.off]


def _slope(name: str, place: int, call: Call, result: str) -> str:
    own = call.operands[place]
    if name in ("mul", "mul_"):
        other = call.operands[1 - place].text
        return f"abs({other}) * {own.off}" if _is_number(other) else f"{other}.abs() * {own.off}"
    if name in ("div", "div_"):
        divisor = call.operands[1].text
        shown = f"abs({divisor})" if _is_number(divisor) else f"{divisor}.abs()"
        return f"{own.off} / {shown}" if place == 0 else f"{result}.abs() * {own.off} / {shown}"
    if name in PRODUCTS:
        first = len(call.operands) - 2
        if place == first:
            return f"{own.off} @ {call.operands[first + 1].text}.abs()"
        return str(own.off) if place < first else f"{call.operands[first].text}.abs() @ {own.off}"
    slope = _SLOPES.get(name)
    if slope is not None:
        return slope(own, call, result)
    moved = Call(name, [Operand(str(own.off), rank=own.rank)], call.literals, call.keywords)
    return value(moved, casts=None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _steepness(function: str) -> Callable[[Operand, Call, str], str]:
    """Of an activation whose slope stays below a bound: what it is off by, times the bound."""
    return lambda own, call, result: f"{function} * {own.off}"


_SLOPES: dict[str, Callable[[Operand, Call, str], str]] = {
    "add": lambda own, call, result: str(own.off),
    "sub": lambda own, call, result: str(own.off),
    "add_": lambda own, call, result: str(own.off),
    "sub_": lambda own, call, result: str(own.off),
    "neg": lambda own, call, result: str(own.off),
    "abs": lambda own, call, result: str(own.off),
    "relu": lambda own, call, result: str(own.off),
    "clamp": lambda own, call, result: str(own.off),
    "_to_copy": lambda own, call, result: str(own.off),
    "pow": lambda own, call, result: (
        f"abs({call.literals[1]}) * {own.text}.abs() ** ({call.literals[1]} - 1) * {own.off}"
    ),
    "rsqrt": lambda own, call, result: f"0.5 * {result} * {own.off} / {own.text}.abs()",
    "sqrt": lambda own, call, result: f"0.5 * {own.off} / {result}",
    "exp": lambda own, call, result: f"{result} * {own.off}",
    "sigmoid": lambda own, call, result: f"{result} * (1 - {result}) * {own.off}",
    "tanh": lambda own, call, result: f"(1 - {result} ** 2) * {own.off}",
    "silu": _steepness("1.1"),
    "gelu": _steepness("1.13"),
    "_softmax": lambda own, call, result: (
        f"{result} * ({own.off} + ({result} * {own.off}).sum({call.literals[1]}, keepdim=True))"
    ),
}
