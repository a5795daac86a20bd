"""The channels of one fleet, model and hardware as a registered model: what MLflow is to show of them. Pure.

A version is a set of tables, whichever channel serves it: so canary and stable point to the same version after a
release, and a rollback moves a pointer back to where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gristmill import cohort, records, revocation
from gristmill.kernel_table import Artifact, KernelTable
from gristmill.revocation import Revocations
from gristmill.trust import Channel
from registry.difference import range_text
from registry.entry import Entry
from tasks.mlflow_runs import MAX_TEXT, NOT_A_KEY

SET_TAG = "tables"
"""What tells versions apart: the digest of their tables' names and manifests."""
SERVED, SUPERSEDED, ROLLED_BACK, REVOKED = "served", "superseded", "rolled back", "revoked"
NOTE = "\n\nRuns of the candidates have the tag `candidate`. `./mill registry show` tells all of it, verified."
ROOM = len(NOTE) + 30
"""For what follows the rows of a description."""


@dataclass(frozen=True)
class Registered:
    """What the registry holds about the channels of one fleet, model and hardware."""

    histories: Mapping[str, Sequence[Entry]]
    """Channel name to its states, newest first; channels that nothing was published to are not named."""
    artifacts: Mapping[str, Artifact]
    """By manifest digest; old ones may have been collected."""
    approved: Collection[str]
    """Manifests that the approver's signature holds for."""
    revoked: Revocations


@dataclass(frozen=True)
class Version:
    """One set of tables."""

    tables_sha256: str
    tags: dict[str, str]
    description: str


@dataclass(frozen=True)
class View:
    """One registered model."""

    name: str
    tags: dict[str, str]
    description: str
    versions: tuple[Version, ...]
    """In the order in which they were first served."""
    aliases: dict[str, str]
    """Channel name to the version, by `Version.tables_sha256`; none where no kernels are served."""


@dataclass(frozen=True)
class _Tenure:
    """The time for which a channel served a set of tables."""

    channel: str
    entry: Entry
    after: Entry | None
    """What took its place; None: nothing yet."""


def view_of(channel: Channel, registered: Registered) -> View:
    """What MLflow is to show.

    Args:
        channel: any of the two that `registered` is about.
    """
    by_set: dict[str, list[_Tenure]] = {}
    for tenure in sorted(_tenures(registered.histories), key=lambda one: one.entry.index.created_utc):
        by_set.setdefault(cohort.salt_of(tenure.entry.index), []).append(tenure)
    about = {"fleet": channel.fleet, "model": channel.model, "hardware": channel.hardware}
    newest = {name: states[0].index for name, states in registered.histories.items()}
    return View(
        name=model_name(channel),
        tags=about
        | {name: f"generation {one.number}, {one.created_utc[:19]}: {one.reason}" for name, one in newest.items()},
        description=(
            f"Kernels of fleet {channel.fleet}, model {channel.model}, on {channel.hardware}. A version is a set of "
            "tables; the aliases are the channels. This is a copy of the signed registry, made after the fact: what is "
            "changed here changes nothing there, and is put right by the next copy. Approve with `./mill approve`."
        ),
        versions=tuple(_version(tables, about, tenures, registered) for tables, tenures in by_set.items()),
        aliases={name: cohort.salt_of(one) for name, one in newest.items() if one.tables},
    )


def model_name(channel: Channel) -> str:
    """MLflow takes no slash in it; spaces keep it unique, since no part of a channel has any."""
    return f"gristmill {channel.fleet} {channel.model} on {channel.hardware}"


def _tenures(histories: Mapping[str, Sequence[Entry]]) -> Iterator[_Tenure]:
    for channel, states in histories.items():
        for after, entry in zip([None, *states], states, strict=False):
            if entry.index.tables:
                yield _Tenure(channel, entry, after)


def _version(
    tables_sha256: str, about: Mapping[str, str], tenures: Sequence[_Tenure], registered: Registered
) -> Version:
    first, last = tenures[0].entry.index, _last(tenures)
    tables = dict(sorted(first.tables.items()))
    artifacts = {name: found.table for name, digest in tables.items() if (found := registered.artifacts.get(digest))}
    revoked = dict(_revoked(tables, artifacts, registered.revoked))
    waiting = [name for name, digest in tables.items() if digest not in registered.approved]
    tags = {
        **about,
        SET_TAG: tables_sha256,
        "operators": " ".join(dict.fromkeys(name.partition(".")[0] for name in tables)),
        "status": REVOKED if revoked else _status(last),
        "reason": last.entry.index.reason,
        "ended": last.after.index.reason if last.after else "-",
        "approved": f"not yet: {', '.join(waiting)}" if waiting else "yes",
        "first_served": first.created_utc[:19],
        **{f"generation/{one.channel}": str(one.entry.index.number) for one in tenures},
        **{f"manifest/{name}": digest for name, digest in tables.items()},
        **{f"gain/{name}": _gain(table) for name, table in artifacts.items()},
        **{f"revoked/{name}": why for name, why in revoked.items()},
    }
    return Version(tables_sha256, {_key(name): value[:MAX_TEXT] for name, value in tags.items()}, _described(artifacts))


def _last(tenures: Sequence[_Tenure]) -> _Tenure:
    """The one that lasts; else the one that ended last."""
    return max(tenures, key=lambda one: (one.after is None, one.after.index.created_utc if one.after else ""))


def _status(last: _Tenure) -> str:
    if last.after is None:
        return SERVED
    return SUPERSEDED if last.after.index.restores is None else ROLLED_BACK


def _revoked(
    tables: Mapping[str, str], known: Mapping[str, KernelTable], revoked: Revocations
) -> Iterator[tuple[str, str]]:
    for name, digest in tables.items():
        table = known.get(name)
        why = revocation.why_table(digest, table, revoked) if table else revoked.reasons.get(digest)
        if why is not None:
            yield name, why


def _gain(table: KernelTable) -> str:
    ratios = [float(entry.ratio) for entry in table.entries] or [1.0]
    least = min((float(entry.ratio_low) for entry in table.entries), default=1.0)
    spread = f"{min(ratios):.2f}x" + (f" to {max(ratios):.2f}x" if max(ratios) > min(ratios) else "")
    return f"{spread}, at least {least:.2f}x"


def _described(tables: Mapping[str, KernelTable]) -> str:
    """A table in Markdown, as MLflow's page shows it, as long as MLflow takes it."""
    lines = ["| table | range | gain | at least | kernel | candidate |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {range_text(entry.domain)} | {entry.ratio}x | {entry.ratio_low}x "
        f"| {records.short(entry.object.sha256)} | {records.short(entry.candidate)} |"
        for name, table in tables.items()
        for entry in table.entries
    ]
    fitting = sum(length < MAX_TEXT - ROOM for length in accumulate(len(line) + 1 for line in lines))
    more = f"\n\nand {len(lines) - fitting} more" if fitting < len(lines) else ""
    return "\n".join(lines[:fitting]) + more + NOTE


def _key(name: str) -> str:
    return NOT_A_KEY.sub("_", name)
