"""Systematic mutants of the comparer: each is told from the original by what it says about a row of telling cases.

Every comparison, operator, constant, flag and reduction of the module, and of the one that describes what it found, is
changed, one at a time. What cannot be told apart is listed with the reason why it is the same program.
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import random
import types
from collections.abc import Callable, Iterator

import pytest
import torch

from harness import comparer, damage

COMPARISONS = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
METHODS = {
    "amax": "amin",
    "max": "min",
    "min": "max",
    "mean": "amax",
    "argmax": "argmin",
    "any": "all",
    "all": "any",
    "maximum": "minimum",
    "minimum": "maximum",
    "isfinite": "isnan",
    "isnan": "isinf",
    "floor": "ceil",
    "sum": "any",
}
DROPPED = ("abs_", "abs", "nan_to_num", "nan_to_num_", "clamp", "clamp_", "masked_fill")
"""Calls that a mutant leaves out."""
FUNCTIONS = {
    "deviate": comparer,
    "_element_allowance": comparer,
    "_mean_allowance": comparer,
    "_mean_base": comparer,
    "_line_base": comparer,
    "of": comparer,
    "measure": comparer,
    "element_ratios": comparer,
    "mean_ratios": comparer,
    "line_ratios": comparer,
    "compare": comparer,
    "merge": comparer,
    "scaled": comparer,
    "roundings": comparer,
    "_lines": comparer,
    "_mean": comparer,
    "_mean_ratios": comparer,
    "_over": comparer,
    "_last_place": comparer,
    "describe": damage,
    "locate": damage,
    "to_blame": damage,
    "histogram": damage,
    "_decade": damage,
    "magnitudes": damage,
    "pattern": damage,
    "_reaches_the_end": damage,
    "_period": damage,
    "_as_rows": damage,
    "_first": damage,
}
ORIGINAL = compile(inspect.getsource(comparer), "comparer", "exec")
EQUIVALENT = {
    "describe: 0 -> 1": "a number that locate replaces",
    "describe: 0 -> 1 (2)": "likewise",
    "histogram: 2 -> 3 (2)": "a bar more at the low end, into which nothing falls",
    "pattern: wrong_RC.any(0) -> wrong_RC.all(0)": "the counts agree only if these columns are wrong whole",
    "pattern: wrong_RC.any(1) -> wrong_RC.all(1)": "the counts agree only if these rows are wrong whole",
}
"""By name, with the reason."""


def variants(node: ast.AST) -> Iterator[Callable[[ast.AST], ast.AST]]:
    """Ways to change a node; each returns the node that takes its place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield lambda n: ast.Compare(n.left, [COMPARISONS[type(n.ops[0])](), *n.ops[1:]], n.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield lambda n: ast.BinOp(n.left, OPERATORS[type(n.op)](), n.right)
        yield lambda n: n.left
    if isinstance(node, ast.BoolOp):
        yield lambda n: ast.BoolOp(ast.Or() if isinstance(n.op, ast.And) else ast.And(), n.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert | ast.USub | ast.Not):
        yield lambda n: n.operand
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda n: ast.Constant(n.value + 1)
        if node.value:
            yield lambda n: ast.Constant(n.value * 0.5 if isinstance(n.value, float) else n.value - 1)
    if isinstance(node, ast.IfExp | ast.If):
        yield lambda n: _replaced(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in METHODS:
            yield lambda n: _replaced(n, "func", _replaced(n.func, "attr", METHODS[n.func.attr]))
        if node.func.attr in DROPPED:
            yield lambda n: n.func.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        yield lambda n: _replaced(n, "func", ast.Name(METHODS[n.func.id], ast.Load()))


def _replaced(node, field, value):
    made = copy.deepcopy(node)
    setattr(made, field, value)
    return made


def mutants() -> dict[str, tuple[types.ModuleType, types.CodeType]]:
    """By what was changed, `function: old -> new`, with a number where that recurs: the module and its new code."""
    found: dict[str, tuple[types.ModuleType, types.CodeType]] = {}
    for module in (comparer, damage):
        tree = ast.parse(inspect.getsource(module))
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in FUNCTIONS]:
            for change in _changes(function):
                again = sum(known.startswith(change) for known in found)
                name = f"{change} ({again + 1})" if change in found else change
                found[name] = module, compile(ast.fix_missing_locations(tree), "mutant", "exec")
    return found


def _changes(function: ast.FunctionDef) -> Iterator[str]:
    """Changes one thing after another, and back, and says what."""
    for parent in ast.walk(function):
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(parent, ast.Call):
                continue
            for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                for change in variants(child) if isinstance(child, ast.AST) else ():
                    new = change(child)
                    _put(parent, field, place, new)
                    yield f"{function.name}: {_text(child)} -> {_text(new)}"
                    _put(parent, field, place, child)


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())[:120]


def _put(parent, field, place, node):
    if place is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[place] = node


PERIODS = (
    (7, [0, 2, 4, 6]),
    (7, [1, 3, 5]),
    (8, [1, 3, 5]),
    (7, [0, 2, 4]),
    (8, [2, 4, 6]),
    (9, [3, 5, 7]),
    (8, [1, 4, 7]),
    (8, [2, 5]),
    (7, [0, 3, 6]),
    (7, [0, 2, 5]),
    (7, [0, 3, 5]),
    (6, [1, 2, 3]),
    (6, [0, 1, 2, 4]),
    (9, [1, 4, 7]),
)
"""Places at equal distances, nearly so, and not from end to end."""


def tensor(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 3


def off(units, shape, facts, dtype=torch.float32):
    """Ones of that shape, off by so many units of eps, which are exact."""
    wanted = torch.ones(shape, dtype=torch.float64)
    errors = torch.tensor(units, dtype=torch.float64).expand(shape) if shape else torch.tensor(units)
    return wanted + errors * torch.finfo(dtype).eps, wanted, wanted, dtype, comparer.ErrorFacts(*facts)


def cases_at_limits():
    """Errors of exactly what is allowed, and single rows and columns that are at fault by their means alone."""
    yield off([[9.0]], (1, 1), (1.0, 2.0))
    yield off([[9.0, 20.0]], (1, 2), (1.0, 99.0))
    lenient = (4.0, 1.6875, 1.6875)
    for units in (
        [[8.0] * 4, [9.0] * 4],
        [[11.0, 7.0, 7.0, 7.0]] * 2,
        [[0.0, 0.0, 0.0, 10.0], [9.0] * 4],
        [[9.0, 0.0, 0.0, 0.0]] * 2,
        [[9.0] * 4, [0.0] * 4],
    ):
        yield off([units], (1, 2, 4), lenient)
        yield off([[units]], (1, 1, 2, 4), lenient)
        yield off([[[row] for row in units]], (1, 2, 1, 4), lenient)
        yield off([list(map(list, zip(*units, strict=True)))], (1, 4, 2), lenient)
    for shape in ((1, 1, 6), (1, 6, 1)):
        wanted = torch.tensor([15.0, 0, 0, 0, 0, 0]).reshape(shape).tolist()
        yield off(wanted, shape, (4.0, 1.0, 0.25))
    yield off([[13.5, 1.0]], (1, 2), (8.0, 8.0, 8.0, 2.0), torch.bfloat16)


def cases_of_damage():
    """Patterns, magnitudes and what is not finite, in combination."""
    nan, inf = float("nan"), float("inf")
    base_RC = tensor(1, 6, 8, seed=9)
    facts = comparer.ErrorFacts(1.0, 99.0, 99.0)
    for places in ([(0, 0, 1, nan), (0, 3, 4, 99.0)], [(0, 2, 2, nan), (0, 5, 7, -9.0)]):
        found = base_RC.clone()
        for *place, value in places:
            found[tuple(place)] = value
        yield found, base_RC, base_RC.abs(), torch.float32, facts
    for value in (nan, inf):
        everywhere = torch.full_like(base_RC, value)
        yield everywhere.clone(), base_RC, base_RC.abs(), torch.float32, facts
        everywhere[0, 2, 3] = 99.0
        yield everywhere, base_RC, base_RC.abs(), torch.float32, facts
        yield base_RC * 2, torch.where(base_RC > 3, value, base_RC), base_RC.abs(), torch.float32, facts
    two_rows = torch.ones(1, 2, 5, dtype=torch.float64)
    for columns in ([1], [1, 3], [3, 4]):
        found = two_rows.clone()
        found[..., columns] = 9.0
        yield found, two_rows, two_rows, torch.float32, facts
    for extent, places in PERIODS:
        for shape in ((1, extent, 4), (1, 4, extent), (1, 1, extent)):
            ones = torch.ones(shape, dtype=torch.float64)
            for wrong, right in ((9.0, 1.0), (1.0, 9.0)):
                found = torch.full_like(ones, right)
                (found if shape[-1] == extent else found.mT)[..., places] = wrong
                yield found, ones, ones, torch.float32, facts
    for values, wrong in (
        ([1.0, 1.0, 1.0, 2.0, 2.0], [2, 3, 4]),
        ([1.0, 1.0, 1.0, 0.5, 0.5], [2, 3, 4]),
        ([1.0, 1.0, inf, 2.0, 2.0], [3, 4]),
        ([1.0, 1.0, inf, 0.5, 0.5], [3, 4]),
        ([4.0, 4.0, 1.0, 0.5, 0.5], [0]),
    ):
        wanted = torch.tensor([values], dtype=torch.float64)
        found = wanted.clone()
        found[0, wrong] *= 3
        yield found, wanted, torch.ones_like(wanted), torch.float32, facts
    for bound in (comparer.ErrorFacts(inf, 0.25, 0.25), comparer.ErrorFacts(1.0, inf, inf)):
        found = base_RC.clone()
        found[0, 1, 1] = nan
        yield found, base_RC, base_RC.abs(), torch.float32, bound
    half = base_RC.clone()
    half[0, :, :4] = nan
    for bound in (comparer.ErrorFacts(4.0, 0.1, 0.1, 1.5), comparer.ErrorFacts(4.0, 0.0)):
        yield half * (1 + 2 * 2**-7), half, base_RC.abs(), torch.bfloat16, bound
        yield half * (1 + 2 * 2**-7), half, half.abs(), torch.bfloat16, bound
        yield half * (1 + 9 * 2**-23), half, base_RC.abs(), torch.float32, bound


def cases():
    """Found, expected and facts: at the edges of every limit, in every shape, with all that is not finite."""
    yield from cases_at_limits()
    yield from cases_of_damage()
    nan, inf = float("nan"), float("inf")
    for dtype in (torch.float32, torch.bfloat16):
        eps = torch.finfo(dtype).eps
        unit_2RC = tensor(2, 4, 6, seed=1)
        for facts in (
            comparer.ErrorFacts(1.0, 0.25),
            comparer.ErrorFacts(0.5, 0.2, 0.3, 0.4),
            comparer.ErrorFacts(4.0, 1.0, 2.0, 1.5),
            comparer.ErrorFacts(8.0, 0.0, 0.0, 5.0),
            comparer.ErrorFacts(0.5, 0.2, 0.3, 0.4, 5.0),
            comparer.ErrorFacts(1.0, 0.0, 0.0, 5.0, 3.0),
        ):
            for steps in (0.6, 2.4, 5.5, 9.5, 13.5, 23.5):
                for where in ((1, 2, 3), (0, 1), (0, slice(None), 2), (1,), (slice(None),)):
                    found = unit_2RC.clone()
                    found[where] *= 1 + steps * eps
                    yield found, unit_2RC, unit_2RC.abs(), dtype, facts
        facts = comparer.ErrorFacts(1.0, 0.25, 0.25, 1.0)
        for bad in (nan, inf, -inf, 0.0, -3.0, 30.0, 1e9):
            for where in ((1, 2, 3), (0, 3, 5), (0, slice(2, None)), (1, slice(None), slice(4, None)), (0, 1)):
                found = unit_2RC.clone()
                found[where] = bad
                yield found, unit_2RC, unit_2RC.abs(), dtype, facts
                yield unit_2RC, found, unit_2RC.abs(), dtype, facts
                yield found, found, unit_2RC.abs(), dtype, facts
        small = torch.tensor([[1.0, 1e-3, 1e-20, 0.0, 2e-39, -5.0, 7.0, 1e6]], dtype=torch.float64)
        for change in (1e-6, 1e-3, 1e-44, 1e-40, 1.0):
            yield small + change, small, small.abs().clamp(min=1e-38), dtype, facts
            yield small + change, small, torch.full_like(small, 100.0), dtype, facts
            yield small * (1 + change), small, torch.zeros_like(small), dtype, comparer.ErrorFacts(0.0, 0.0, 0.0, 0.0)
        for shape in ((1, 1), (1, 5), (3, 1, 4), (1, 4, 1), (2, 1, 1)):
            wanted = tensor(*shape, seed=3)
            for steps in (3.0, 8.0, 20.0):
                yield wanted * (1 + steps * eps), wanted, wanted.abs(), dtype, facts
    wide_RC = tensor(1, 8, 64, seed=5).sign() * torch.logspace(-8, 8, 512, dtype=torch.float64).reshape(1, 8, 64)
    for low, high in ((0.0, 1e-3), (1e3, 1e9), (1e-2, 1e2)):
        chosen = (wide_RC.abs() >= low) & (wide_RC.abs() < high)
        found = torch.where(chosen, wide_RC * 1.01, wide_RC)
        yield found, wide_RC, wide_RC.abs(), torch.float32, comparer.ErrorFacts(1.0, 0.25, 0.3, 1.0)
    grown = wide_RC * (1 + torch.logspace(-8, 2, 512, dtype=torch.float64).reshape(1, 8, 64))
    yield grown, wide_RC, wide_RC.abs(), torch.float32, comparer.ErrorFacts(1.0, 0.25, 0.3, 1.0)


CASES = [  # in an order in which most mutants die young
    (found.to(dtype), values.to(dtype).double(), scale, dtype, facts)
    for found, values, scale, dtype, facts in random.Random(1).sample(list(cases()), len(list(cases())))
]


def behaviour(module) -> Iterator[str]:
    """All that a comparer says about the cases, one by one; an exception is an answer too."""
    for found, values, scale, dtype, facts in CASES:
        wanted = module.Expected(values.clone(), scale.clone(), dtype)  # a mutant may write to them
        own = module.ErrorFacts(facts.largest, facts.mean, facts.line, facts.places, facts.sums)
        try:
            answer = repr(module.compare(found.clone(), wanted, own, workload="w", output="o"))
            facts_found = module.measure(found.clone(), wanted)
            rule = [-1.0 if math.isinf(number) else number for number in module.Rule.of(own, dtype, 4.0)]
            facts_told = [module.merge([facts_found, own]), facts_found, own.scaled(0.5)]
            digits = [rule, *([f.largest, f.mean, f.line, f.places, f.sums] for f in facts_told)]
            yield answer + "".join(f" {number:.9g}" for row in digits for number in row)
        except (ArithmeticError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            yield type(error).__name__


def differs(module: types.ModuleType, code: types.CodeType, truth: list[str]) -> bool:
    """Whether a comparer with that code for one of its modules says anything else, or cannot even be asked."""
    mutant = _loaded(module, code)
    if module is damage:
        whole = _loaded(comparer, ORIGINAL)
        whole.__dict__["damage"] = mutant
        mutant = whole
    return any(said != true for said, true in zip(behaviour(mutant), truth, strict=True))


def _loaded(module: types.ModuleType, code: types.CodeType) -> types.ModuleType:
    made = types.ModuleType("mutant")
    made.__dict__["__name__"] = module.__name__
    exec(code, made.__dict__)
    return made


def test_every_mutant_is_told_from_the_original():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        truth = list(behaviour(comparer))
        made = mutants()
        alive = {name for name, (module, code) in made.items() if not differs(module, code, truth)}
    finally:
        torch.set_num_threads(threads)
    assert len(made) > 150
    assert alive - set(EQUIVALENT) == set(), "mutants that no case tells from the original"
    assert set(EQUIVALENT) - alive == set(), "listed as equivalent, but told apart or gone"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_has_mutants(name):
    assert f"def {name}(" in inspect.getsource(FUNCTIONS[name])
