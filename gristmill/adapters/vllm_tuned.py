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
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from gristmill import durable_file, tuned_table
from gristmill.adapters.engine_link import installed_versions
from gristmill.adapters.vllm import PACKAGES
from gristmill.errors import EngineError, GristmillError
from gristmill.generation import Generation
from gristmill.hardware import local_gpu
from gristmill.membership import Membership
from gristmill.tuned_table import LARGEST_TOKENS, BaselineKey, Configuration, TunedFile, TunedRange

VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
FOLDER = "tuned"
"""Within a host's cache folder."""
FILE_NAME = re.compile(r"E=\d+,N=\d+,device_name=[^/]+\.json")
LARGEST_STEP = 1 << 18
"""Up to which number of tokens the engine's own formula is asked; from some thousands on it changes no more."""
LOGGER = logging.getLogger("vllm.gristmill")


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
    """Lets the engine look in the host's cache, if something lies there and the operator has named no other folder. To
    be called before a model is loaded: the engine reads each file once.
    """
    folder = Path(cache_dir) / FOLDER
    if next(folder.glob("*.json"), None) is None:
        return False
    named = environ.setdefault(VARIABLE, str(folder))
    if named != str(folder):
        LOGGER.warning("%s is set already, so tuned configurations in %s are not used", VARIABLE, folder)
    return named == str(folder)


def file_name(
    experts: int, intermediate: int, device_name: str, dtype: str | None, block_shape: Sequence[int] | None = None
) -> str:
    """What the engine looks for, as its `get_config_file_name` has it.

    Args:
        intermediate: of one expert on one device.
        device_name: as the driver reports it.
        dtype: as the engine calls its weights' quantisation: `fp8_w8a8`; None if there is none.
        block_shape: of the quantisation's scales.
    """
    device = re.sub(r"[\s/]+", "_", device_name)
    device = "NVIDIA_H200" if "H200" in device.split("_") else device
    selectors = f",dtype={dtype}" if dtype else ""
    if block_shape and all(block_shape):
        selectors += f",block_shape=[{','.join(map(str, block_shape))}]"
    return f"E={experts},N={intermediate},device_name={device}{selectors}.json"


def steps(formula: Callable[[int], Configuration], largest: int = LARGEST_STEP) -> tuple[BaselineKey, ...]:
    """A formula over the number of tokens as keys: both ends of each step, so that the nearest key has what it says."""
    found: list[BaselineKey] = []
    for configuration, run in itertools.groupby(range(1, largest + 1), formula):
        numbers = list(run)
        found += [BaselineKey(tokens, dict(configuration)) for tokens in sorted({numbers[0], numbers[-1]})]
    return tuple(found)


def engine_baseline(
    experts: int,
    intermediate: int,
    hidden: int,
    top_k: int,
    dtype: str | None,
    block_shape: Sequence[int] | None = None,
) -> tuple[BaselineKey, ...]:
    """What the engine of this process takes by itself on this device: its own file, or its formula. To be asked where
    it is measured, without a folder of tuned configurations.
    """
    from vllm.model_executor.layers.fused_moe import fused_moe as engine

    block_n, block_k = block_shape or (0, 0)
    own = engine.get_moe_configs(experts, intermediate, dtype, block_n, block_k)
    if own:
        return tuple(BaselineKey(tokens, dict(configuration)) for tokens, configuration in own.items())
    shape = list(block_shape) if block_shape else None
    return steps(lambda tokens: engine.get_default_config(tokens, experts, intermediate, hidden, top_k, dtype, shape))


def content(file: TunedFile) -> dict[int, Configuration]:
    """What the engine is to read; errors as `keys_of`."""
    return keys_of(file.ranges, {key.tokens: key.configuration for key in file.baseline})


def install(generation: Generation, folder: Path, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Makes the folder hold what a generation has for this engine, and nothing else. What it cannot use is left out:
    returned are the reasons. Processes of one host may do it at once.
    """
    notes: list[str] = []
    wanted: dict[str, dict[int, Configuration]] = {}
    for name, made in _files(generation, notes):
        why = tuned_table.objection(made, versions)
        if why:
            notes.append(f"{name}: {why}")
        elif made.ranges:
            wanted[made.file_name] = content(made)
    for one, keys in wanted.items():
        try:
            write(folder, one, keys)
        except (EngineError, OSError) as error:
            notes.append(str(error))
    for path in folder.glob("*.json"):
        if path.name not in wanted:
            path.unlink(missing_ok=True)
    return tuple(notes)


def _files(generation: Generation, notes: list[str]) -> Iterator[tuple[str, TunedFile]]:
    for table in generation.tables:
        if table.operator != tuned_table.OPERATOR:
            continue
        for sha256 in dict.fromkeys(entry.object.sha256 for entry in table.entries):
            try:
                found = tuned_table.parse(generation.objects[sha256].read_bytes(), table.name)
                yield table.name, tuned_table.without_revoked(found, table, sha256)
            except (GristmillError, OSError) as error:
                notes.append(str(error))


def follow(membership: Membership, environ: MutableMapping[str, str]) -> None:
    """Puts what the channel has in place and points the engine there, before it loads a model. It reads each file once,
    so that a later generation counts from the next start. Whatever goes wrong, it starts with its own configurations,
    or those of the last good generation.
    """
    folder = Path(membership.cache_dir) / FOLDER
    if environ.get(VARIABLE) != str(folder):  # else the process that started this one has done so
        gpu = local_gpu()
        if gpu is not None:
            try:
                generation = _generation(membership, gpu.key, environ)
                notes = install(generation, folder, installed_versions(PACKAGES)) if generation is not None else ()
            except (GristmillError, OSError) as error:
                notes = (str(error),)
            for note in notes:
                LOGGER.warning("tuned configurations: %s", note)
    point(environ, membership.cache_dir)


def _generation(membership: Membership, hardware: str, environ: Mapping[str, str]) -> Generation | None:
    follower = membership.follower(hardware, lambda: tuned_table.NAMES, environ)
    try:
        found = follower.poll()
        if found is not None:
            return found
    except GristmillError as error:
        LOGGER.warning("tuned configurations: %s", error)
    return follower.last_good()


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
