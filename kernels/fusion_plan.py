"""The name of a fused operator says how it is made of others, and nothing else does.

Stages are joined by `+`: the outputs of one feed the activations of the next, in order. `++` keeps those outputs as
outputs of the whole, because somebody else reads them too. Operators joined by `-` stand side by side in one stage and
read the same first activation; the first output of the stage before feeds it.

    rms_norm+skinny_linear                       a norm, and the projection of it
    residual_add++rms_norm                       a residual addition, which is kept, and the norm of it
    skinny_linear-skinny_linear+silu_and_mul     gate and up projections of one input, and their gated activation

All characters are those that object keys take. Imports no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

FEED, KEEP, BESIDE = "+", "++", "-"
MAX_PARTS = 8
LINK = re.compile(r"\+{1,2}")


@dataclass(frozen=True)
class Stage:
    """Operators that run side by side."""

    operators: tuple[str, ...]
    kept: bool = False
    """Whether what it feeds on is an output too. Never of the last stage."""


def is_fused(name: str) -> bool:
    """Whether a name is meant to be that of a fused operator."""
    return FEED in name or BESIDE in name


def parse(name: str) -> tuple[Stage, ...]:
    """The stages of a fused operator. Whether there are such operators is for others to say: they may be empty."""
    links = [*LINK.findall(name), FEED]
    return tuple(
        Stage(tuple(stage.split(BESIDE)), link == KEEP) for stage, link in zip(LINK.split(name), links, strict=True)
    )


def is_part(name: str, whole: str) -> bool:
    """Whether one fused operator computes a part of what another does: stages in a row, with operators of each."""
    some, every = ([Counter(stage.operators) for stage in parse(one)] for one in (name, whole))
    places = range(len(every) - len(some) + 1)
    return any(all(few <= many for few, many in zip(some, every[place:], strict=False)) for place in places)


def render(stages: tuple[Stage, ...]) -> str:
    """The name of these stages; `parse` gives them back."""
    texts = [BESIDE.join(stage.operators) + (KEEP if stage.kept else FEED) for stage in stages[:-1]]
    return "".join([*texts, BESIDE.join(stages[-1].operators)])
