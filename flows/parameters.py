"""What a person may set when starting a deployment: described in the Prefect UI, refused there if it makes no sense.

Prefect makes a form of these, its server refuses a run whose parameters break them, and so does the flow itself before
its first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from agents.agent import MOST_AGENTS
from agents.strategies import catalogue
from gristmill.limits import MAX_REASON_CHARS

MOST_WINDOW_H = 24.0 * 31
MOST_SEARCH_S = 7 * 86_400.0
Zero = Annotated[float, Field(ge=0)]
OperatorName = Annotated[str, Field(pattern=r"^[a-z0-9_+]{1,200}$")]


def _told(description: str, *, choices: Sequence[str] = (), **limits: Any) -> Any:
    """Prefect takes a parameter's description from docstrings and would drop pydantic's own; this one it keeps.

    Args:
        choices: what the form offers; `limits` say what is taken.
    """
    extra: dict[str, Any] = {"description": description, **({"enum": list(choices)} if choices else {})}
    return Field(json_schema_extra=extra, **limits)


Channel = Annotated[Literal["canary", "stable"], _told("Channel of the registry that hosts follow.")]
WindowH = Annotated[float, _told("Hours of sampled traffic to look at, up to now.", gt=0, le=MOST_WINDOW_H)]
BudgetS = Annotated[
    float,
    _told(
        "Seconds of search, all operators together. The caps of the day (MILL_DAILY_DEVICE_S, MILL_DAILY_USD, ...; see "
        "./mill budget) hold besides.",
        gt=0,
        le=MOST_SEARCH_S,
    ),
]
DailyS = Annotated[
    Annotated[float, Field(ge=0, le=86_400)] | None,
    _told("Seconds that all searches of a UTC day may take together; none: as MILL_DAILY_WALL_S says."),
]
Seed = Annotated[int, _told("Of the agents; another seed is another search.", ge=0, lt=1 << 63)]
Operators = Annotated[
    list[OperatorName] | None,
    _told("Operators to search, by name (./mill operators); none: all that the profile holds."),
]
Strategy = Annotated[
    str, _told("How the agents are led.", choices=catalogue.NAMES, pattern=f"^({'|'.join(catalogue.NAMES)})$")
]
Agents = Annotated[int, _told("Agents that ask language models; 0: pattern agents alone.", ge=0, le=MOST_AGENTS)]
Fusions = Annotated[bool, _told("Search what could be fused as well (see ./mill rank --fusions).")]
PublishTo = Annotated[
    Literal["", "canary", "stable"], _told("Channel to publish proven winners to; empty: search only.")
]
OnlyIfMoved = Annotated[bool, _told("End at once if traffic and engine are what was last compiled for.")]
Model = Annotated[
    str, _told("Model of the fleet; empty: MILL_MODEL of the worker.", pattern=r"^[\w.=+@,-]*$", max_length=200)
]
SearchId = Annotated[str, _told("Id of the search; empty: the one that finished last.", pattern=r"^([0-9a-f]{12})?$")]
ProofS = Annotated[float, _told("Seconds of measuring per workload and kernel.", gt=0, le=600)]
Again = Annotated[bool, _told("Take kernels that failed in canary, too.")]
Table = Annotated[
    str, _told("Table to approve, e.g. `rms_norm.float32`; empty: all.", pattern=r"^([a-z0-9_+]+\.[a-z0-9_]+)?$")
]
Generation = Annotated[
    Annotated[int, Field(ge=1, lt=1 << 31)] | None,
    _told("Number of the generation that was looked at; refused if another one is current. None: whichever is."),
]
DespiteFailure = Annotated[bool, _told("Approve it although the watch has found it to fail; the signature says so.")]
Hardware = Annotated[
    str,
    _told(
        "Hardware key of the channel, or `all` that something was published for; empty: that of the worker.",
        pattern=r"^[\w.=+@,-]*$",
        max_length=200,
    ),
]
Release = Annotated[bool, _told("Make stable serve what was approved, at once.")]
Act = Annotated[bool, _told("Release what has succeeded and roll back what has failed; else only look.")]
WatchNumbers = Annotated[
    dict[str, Zero] | None, _told('Numbers of the watch policy to judge by instead of its own: {"soak_s": 600}.')
]
StateNumber = Annotated[
    Annotated[int, Field(ge=0)] | None,
    _told("State to go back to (see ./mill registry log); 0: no kernels at all; none: the one before."),
]
Digest = Annotated[
    str,
    _told(
        "Of the manifest, object or candidate to revoke: 12 of its digits or more.",
        pattern=r"^\s*[0-9a-fA-F]{12,64}\s*$",
    ),
]
Reason = Annotated[str, _told("Why; hosts and logs show it.", min_length=1, max_length=MAX_REASON_CHARS)]
Sample = Annotated[int, _told("Kernels to judge again; those judged longest ago come first.", ge=0, le=1000)]
GoneAfterDays = Annotated[
    float, _told("Days without traffic after which a kind of hardware counts as gone.", gt=0, le=3650)
]
Demote = Annotated[bool, _told("Revoke what has expired or holds no longer; else only tell.")]
Days = Annotated[float, _told("Days to tell of, up to now.", gt=0, le=366)]
