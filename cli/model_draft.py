"""Drafts for the operators of a model that have no definition, and how sharp the check of each would be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import GristmillError
from kernels.errors import DraftError

if TYPE_CHECKING:
    from kernels.drafts.draft import Draft
    from kernels.drafts.extents import Pair
    from kernels.models.recognition import Recognition, TracedCall
    from kernels.models.recording import Recording

Tell = Callable[[str], None]
BY_HAND = "a matrix product, a look-up or attention by itself; such a definition is written by hand"


@dataclass(frozen=True)
class Sharpness:
    """What the judge's rule makes of right and wrong answers, in one dtype."""

    dtype: str
    probes: int
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Drafted:
    """One operator: the file that was written, or why none was."""

    operator: str
    file: str = ""
    sharpness: tuple[Sharpness, ...] = ()
    reason: str = field(default="")


def drafted(
    operators: Iterable[str], recordings: Sequence[Recording], names: Mapping[Pair, str], folder: Path, tell: Tell
) -> list[Drafted]:
    """Writes a file for every operator that can be drafted from the recordings.

    Raises:
        DraftError: there is one recording only, or they are not of the same model.
    """
    from kernels.models.recognition import Recognition

    if len(recordings) < 2:
        raise DraftError("draft: one recording tells no extents apart; give a .py file with example(tokens)")
    tell("recognising operators")
    seen = [Recognition(recording) for recording in recordings]
    pairs = _pairs(seen)
    return list(_each(operators, seen, pairs, names, folder, tell))


def _pairs(seen: Sequence[Recognition]) -> dict[str, tuple[TracedCall, TracedCall]]:
    """The first call of each operator in both recordings."""
    calls = [recognition.calls() for recognition in seen]
    if [traced.call.operator for traced in calls[0]] != [traced.call.operator for traced in calls[1]]:
        raise DraftError("draft: the two recordings call different operators; example(tokens) may change sizes only")
    found: dict[str, tuple[TracedCall, TracedCall]] = {}
    for first, second in zip(*calls, strict=True):
        found.setdefault(first.call.operator, (first, second))
    return found


def _each(
    operators: Iterable[str],
    seen: Sequence[Recognition],
    pairs: Mapping[str, tuple[TracedCall, TracedCall]],
    names: Mapping[Pair, str],
    folder: Path,
    tell: Tell,
) -> Iterator[Drafted]:
    for operator in operators:
        tell(f"drafting {operator}")
        try:
            made = _made(operator, seen, pairs, names)
            path = made.write(folder)
        except GristmillError as refused:
            yield Drafted(operator, reason=str(refused))
            continue
        yield Drafted(operator, str(path), tuple(_examined(made, tell)))


def _made(
    operator: str,
    seen: Sequence[Recognition],
    pairs: Mapping[str, tuple[TracedCall, TracedCall]],
    names: Mapping[Pair, str],
) -> Draft:
    """Of whole inputs; where these are of widths that depend on one another, of their parts."""
    from kernels.drafts.draft import draft
    from kernels.drafts.source import Seen
    from kernels.models.regions import Cuts

    if operator not in pairs:
        raise DraftError("it does not occur in a forward pass of one prompt; its definition is written by hand")
    first, second = pairs[operator]
    if first.piece is None or second.piece is None:
        raise DraftError(BY_HAND)
    pieces = (first.piece, second.piece)
    recordings = [recognition.cuts.recording for recognition in seen]
    refusals = []
    for whole in (True, False):
        cuts = [Cuts(recording, whole_inputs=whole) for recording in recordings]
        try:
            return draft(operator, Seen(cuts[0], pieces[0]), Seen(cuts[1], pieces[1]), names)
        except DraftError as refused:
            refusals.append(refused)
    raise refusals[0]


def _examined(made: Draft, tell: Tell) -> Iterator[Sharpness]:
    from harness import sharpness
    from kernels.definition import DTYPES

    for dtype in DTYPES:
        tell(f"putting right and wrong answers to the check of {made.name}, {dtype}")
        probes = sharpness.examine(made.definition, dtype)
        yield Sharpness(dtype, len(probes), tuple(sharpness.failures(probes)))
