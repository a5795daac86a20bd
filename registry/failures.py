"""Kernels that failed in canary: what the watch has taken back, so that nobody brings it again without a word.

The signed history of the channel remembers it: a rollback says in its reason that a canary failed. What somebody has
brought back since, knowing that, and what stable serves has not failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise

from gristmill.cohort import CANARY, STABLE
from gristmill.errors import ObjectNotFoundError
from gristmill.kernel_table import KernelTable
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry.entry import Entry
from registry.publication import read_manifest
from registry.repository import Repository

LOOKED_BACK = 100
"""States of canary: what failed longer ago may be tried anew."""
_MARK = "canary failed: "


def told(reason: str) -> str:
    """The reason of a rollback that undoes a canary which has failed, or of what takes its tables out."""
    return f"{_MARK}{reason}"


def failed_kernels(object_store: ObjectStore, repository: Repository, kind: Channel) -> dict[str, str]:
    """Candidates and shared objects, by digest, that failed in canary: when and why.

    Args:
        kind: fleet, model and hardware; its name does not matter.
    """
    states = list(islice(repository.history(replace(kind, name=CANARY)), LOOKED_BACK))
    if not any(map(_failure, states)):
        return {}

    @cache
    def kernels(manifest_sha256: str) -> frozenset[str]:
        return kernels_of(object_store, manifest_sha256)

    def served(state: Entry | None) -> frozenset[str]:
        return frozenset().union(*map(kernels, state.index.tables.values())) if state else frozenset()

    failed: dict[str, str] = {}
    for before, after in pairwise(reversed(states)):
        why = _failure(after)
        if why:
            failed |= dict.fromkeys(served(before), f"generation {before.index.number} failed in canary: {why}")
        failed = _without(failed, served(after)) if failed else failed
    return _without(failed, served(repository.current(replace(kind, name=STABLE))))


def kernels_of(object_store: ObjectStore, manifest_sha256: str) -> frozenset[str]:
    """The candidates and shared objects of a manifest, by digest; none if it was collected."""
    try:
        table = read_manifest(object_store, manifest_sha256).table
    except ObjectNotFoundError:
        return frozenset()
    return frozenset(digest for entry in table.entries for digest in (entry.candidate, entry.object.sha256))


def why_failed(table: KernelTable, failed: Mapping[str, str]) -> str | None:
    """When and why a kernel of a table failed; None if none has."""
    digests = (digest for entry in table.entries for digest in (entry.candidate, entry.object.sha256))
    return next((failed[digest] for digest in digests if digest in failed), None)


def _failure(state: Entry) -> str:
    """Why the canary failed that a state undoes, wholly or by some tables; empty if it undoes none."""
    reason = state.index.reason
    return reason.partition(_MARK)[2] if state.index.restores is not None or reason.startswith(_MARK) else ""


def _without(failed: Mapping[str, str], digests: frozenset[str]) -> dict[str, str]:
    return {digest: why for digest, why in failed.items() if digest not in digests}
