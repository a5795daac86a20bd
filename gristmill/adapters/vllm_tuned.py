"""Launch configurations for vLLM's fused experts, as its `VLLM_TUNED_CONFIG_FOLDER` takes them.

The engine looks a number of tokens up among a file's keys and takes the nearest, so that a configuration measured at
decode sizes also serves prompts, for which nobody has measured it. Files written here keep each configuration to its
range: there is a key at both ends of whatever has one configuration, and nothing is nearer to any number between.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill import durable_file
from gristmill.errors import EngineError

VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
FOLDER = "tuned"
"""Within a host's cache folder."""
LARGEST_TOKENS = 65536
FILE_NAME = re.compile(r"E=\d+,N=\d+,device_name=[^/]+\.json")
LOGGER = logging.getLogger("vllm.gristmill")

Configuration = Mapping[str, int]
"""Such as `BLOCK_SIZE_M` and `num_warps`."""


@dataclass(frozen=True)
class TunedRange:
    """A configuration proven for so many tokens, both ends included."""

    low: int
    high: int
    configuration: Configuration


def keys_of(ranges: Sequence[TunedRange], baseline: Mapping[int, Configuration]) -> dict[int, Configuration]:
    """The file's content: looked up as the engine does, it gives a range's configuration within that range, and outside
    of all what the baseline's own keys give.

    Raises:
        EngineError: two ranges overlap, one is empty, or there is no baseline for what they leave.
    """
    ordered = sorted(ranges, key=lambda one: one.low)
    for before, after in itertools.pairwise(ordered):
        if after.low <= before.high:
            raise EngineError(f"tuned ranges {before.low} to {before.high} and {after.low} to {after.high} overlap")
    if not baseline or any(not 1 <= one.low <= one.high <= LARGEST_TOKENS for one in ordered):
        raise EngineError(f"tuned ranges: expected ranges within 1 to {LARGEST_TOKENS}, and a baseline beside them")
    keys: dict[int, Configuration] = {}
    end = 0
    for one in ordered:
        _keep_baseline(keys, baseline, end + 1, one.low - 1)
        keys[one.low] = keys[one.high] = one.configuration
        end = one.high
    _keep_baseline(keys, baseline, end + 1, None)
    return keys


def write(folder: Path, file_name: str, keys: Mapping[int, Configuration]) -> Path:
    """Puts a file where the engine looks; it appears by rename.

    Raises:
        EngineError: the engine would never look for that name.
    """
    if not FILE_NAME.fullmatch(file_name):
        raise EngineError(f"{file_name!r}: vLLM looks for names such as E=8,N=14336,device_name=NVIDIA_H100.json")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name
    durable_file.write(path, json.dumps({str(key): dict(keys[key]) for key in sorted(keys)}, indent=1).encode())
    return path


def point(environ: MutableMapping[str, str], cache_dir: str) -> bool:
    """Lets the engine look in the host's cache, if there is such a folder and the operator has named no other. To be
    called before a model is loaded: the engine reads each file once.
    """
    folder = Path(cache_dir) / FOLDER
    if not folder.is_dir():
        return False
    named = environ.setdefault(VARIABLE, str(folder))
    if named != str(folder):
        LOGGER.warning("%s is set already, so tuned configurations in %s are not used", VARIABLE, folder)
    return named == str(folder)


def _keep_baseline(
    keys: dict[int, Configuration], baseline: Mapping[int, Configuration], low: int, high: int | None
) -> None:
    """Keys for what the baseline gives from `low` to `high`, or to the end: both ends of every stretch it has."""
    ordered = list(baseline)
    points = sorted(ordered)
    starts = [low, *(_first_nearer(ordered, one, other) for one, other in itertools.pairwise(points))]
    starts = sorted({start for start in starts if start >= low and (high is None or start <= high)})
    if high is not None and low > high:
        return
    for start, after in zip(starts, [*starts[1:], None], strict=True):
        end = high if after is None else after - 1
        keys[start] = baseline[_nearest(ordered, start)]
        if end is not None:
            keys[end] = keys[start]


def _nearest(keys: Sequence[int], tokens: int) -> int:
    """As the engine: of two that are as near, the one that comes first."""
    return min(keys, key=lambda key: abs(key - tokens))


def _first_nearer(keys: Sequence[int], lower: int, upper: int) -> int:
    """The first number that is given to the upper of two neighbours."""
    middle = (lower + upper) // 2
    return next(tokens for tokens in range(max(lower, middle - 1), upper + 1) if _nearest(keys, tokens) == upper)
