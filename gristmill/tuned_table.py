"""Tuned tables: launch configurations for an engine's fused experts, as an artifact of a channel carries them.

To the registry such a table is a kernel table like any other: of the operator `vllm_fused_moe`, with an entry for each
range of tokens that was measured, gated, signed, revoked and expired as others are. The object of its entries is no
code but a `TunedFile`, from which a host writes what its engine reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gristmill import records
from gristmill.errors import EngineError
from gristmill.kernel_table import KernelTable

OPERATOR = "vllm_fused_moe"
TOKENS = "tokens"
"""The axis that the engine looks configurations up by."""
UNQUANTISED = "unquantised"
DTYPES = (UNQUANTISED, "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16")
"""How the engine tells files apart by their weights; the first are those that name no dtype."""
NAMES = frozenset(f"{OPERATOR}.{dtype}" for dtype in DTYPES)
"""Of the tables, in a channel's index."""
OBJECT = "tuned.json"
MOST_BYTES = 8 << 20
LARGEST_TOKENS = 65536

Configuration = dict[str, int]
"""Such as `BLOCK_SIZE_M` and `num_warps`."""


@dataclass(frozen=True)
class TunedRange:
    """A configuration proven for so many tokens, both ends included."""

    low: int
    high: int
    configuration: Configuration


@dataclass(frozen=True)
class BaselineKey:
    """What the engine would look up by itself: of a file of its own a key, of its formula one end of a step."""

    tokens: int
    configuration: Configuration


@dataclass(frozen=True)
class TunedFile:
    """One file of the engine's, and what it rests on."""

    file_name: str
    """As this engine looks for it on this device."""
    versions: dict[str, str]
    """Of the packages that it was measured with, the engine's and Triton's; with others it proves nothing."""
    ranges: tuple[TunedRange, ...]
    """Ascending, apart from each other."""
    baseline: tuple[BaselineKey, ...]
    """In the order in which the engine holds them: of two that are as near it takes the first."""
    schema_version: int = 1


def parse(content: bytes, where: str) -> TunedFile:
    """The file of an artifact, whose digest has been verified.

    Raises:
        MalformedRecordError: it is none.
    """
    return records.parse(TunedFile, content, where)


def without_revoked(file: TunedFile, table: KernelTable, sha256: str) -> TunedFile:
    """The file with those ranges alone that entries of a table still claim for it, which is the object `sha256`.

    Raises:
        EngineError: an entry claims what the file does not hold.
    """
    claimed = set()
    for entry in table.entries:
        tokens = [one for one in entry.domain.ranges if one.name == TOKENS]
        if entry.object.sha256 == sha256 and len(tokens) == 1:
            claimed.add((tokens[0].low, tokens[0].high))
    held = {(one.low, one.high) for one in file.ranges}
    if claimed - held:
        low, high = min(claimed - held)
        raise EngineError(f"{table.name}: claims {low} to {high} tokens of {file.file_name}, which holds no such range")
    return replace(file, ranges=tuple(one for one in file.ranges if (one.low, one.high) in claimed))


def objection(file: TunedFile, versions: Mapping[str, str]) -> str:
    """Why a host that runs these versions does not use it; empty if it does."""
    for package, proven in sorted(file.versions.items()):
        runs = versions.get(package, "")
        if _public(runs) != _public(proven):
            return f"measured with {package} {proven}, and this host runs {runs or 'none'}"
    return ""


def _public(version: str) -> str:
    """Without the build: 0.32.0 of 0.32.0+cu130."""
    return version.partition("+")[0]
