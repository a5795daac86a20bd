"""`python -m benchmarks.drift`: how often drift is told of windows of the same traffic, and how often it is missed.

Recorded requests (hours of Azure's code and conversation and of Mooncake's conversation) are served by a simulated
fleet, as `./mill import` serves them. What its hosts call is folded per window, kept and read again, and compared as
`./mill drift` and the deployment `capture` compare. Windows of one pair share no request: they lie apart in time, or
belong to different hosts.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome, report
from cli.progress import ProgressLine
from gristmill import records
from kernels.drift import Drift, drift
from kernels.imports import request_traces
from kernels.imports.batching import Limits
from kernels.imports.imported import BLOCK_NS, Collector
from kernels.imports.modelled import Device, ModelledTraffic
from kernels.imports.request_traces import TracedRequest
from kernels.models.listing import ModelOperators, model_operators
from kernels.profile import TrafficProfile, parse
from kernels.sketch import REQUESTS
from kernels.tally import Pattern, Source, Tally, total

COMMAND = "python -m benchmarks.drift"
ISSUE = 6
TRACES = ROOT.parent / "shared" / "traces"
PAIRS = 200
FALSE_ALARMS, DETECTIONS = 0.05, 0.99
MINUTES = (12, 28)
"""Length of a window, drawn evenly."""
BLOCKS_PER_MINUTE = 60 * 10**9 // BLOCK_NS
LLAMA_8B: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
DEVICE = Device(tflops=400, gb_s=2000)


@dataclass(frozen=True)
class Recording:
    """An hour of requests, and how many engines are enough for it."""

    name: str
    kind: str
    file: str
    engines: int


CODE = Recording("Azure code", "azure", "AzureLLMInferenceTrace_code.csv", 2)
CONVERSATIONS = (
    Recording("Azure conversation", "azure", "AzureLLMInferenceTrace_conv.csv", 2),
    Recording("Mooncake conversation", "mooncake", "mooncake_conversation_trace.jsonl", 8),
)
HOURS = (CODE, *CONVERSATIONS)


class Blocks(Collector):
    """What one engine calls, apart for each block of time."""

    def __init__(self, source: Source) -> None:
        super().__init__("requests", source, {})
        self._source_of_blocks = source
        self._blocks: dict[int, Collector] = {}
        self._at = 0

    def at(self, start_ns: int, end_ns: int) -> None:
        self._at = start_ns // BLOCK_NS
        self._block_of(self._at).at(start_ns, end_ns)

    def add(self, pattern: Pattern, calls: int, time_ns: int) -> None:
        self._block_of(self._at).add(pattern, calls, time_ns)

    def add_request(self, request: TracedRequest, arrived_ns: int) -> None:
        self._block_of(arrived_ns // BLOCK_NS).add_request(request, arrived_ns)

    def tallies(self) -> dict[int, Tally]:
        """By block, counted from 1970. Without call patterns: of a profile, drift looks at the sketch alone."""
        found = {number: one.tally() for number, one in self._blocks.items()}
        return {number: replace(tally, patterns={}) for number, tally in found.items() if tally is not None}

    def _block_of(self, number: int) -> Collector:
        if number not in self._blocks:
            self._blocks[number] = Collector("requests", self._source_of_blocks, {})
        return self._blocks[number]


@dataclass(frozen=True)
class Served:
    """An hour as its hosts sampled it."""

    name: str
    hosts: tuple[dict[int, Tally], ...]
    """Tallies by block, counted from the first arrival."""
    blocks: int
    """Until the last arrival."""

    def window(self, start: int, blocks: int, hosts: slice = slice(None)) -> TrafficProfile:
        """The profile of these hosts over that time, as it is kept and read again."""
        chosen = [
            (str(number), host[number])
            for number in range(start, start + blocks)
            for host in self.hosts[hosts]
            if number in host
        ]
        return parse(records.canonical_json(total(chosen).profile()), self.name)


def served(recording: Recording, folder: Path, model: ModelOperators) -> Served:
    """The whole hour through as many engines as it takes; each has its share of the requests.

    Raises:
        TraceError: the recording cannot be read.
    """
    reading = request_traces.Reading()
    form = request_traces.FORMATS[recording.kind]
    requests = list(request_traces.read(form, folder / recording.file, reading))
    began_ns = requests[0].arrival_ns
    source = Source("benchmark", recording.name, "none")
    hosts = []
    for engine in range(recording.engines):
        collector = Blocks(source)
        ModelledTraffic(model, DEVICE, Limits(), collector).serve(
            itertools.islice(requests, engine, None, recording.engines), 0
        )
        first = began_ns // BLOCK_NS
        hosts.append({number - first: tally for number, tally in collector.tallies().items()})
    return Served(recording.name, tuple(hosts), (requests[-1].arrival_ns - began_ns) // BLOCK_NS)


@dataclass(frozen=True)
class Compared:
    """What was told of one pair."""

    pair: str
    drift: Drift

    @property
    def told(self) -> str:
        return self.drift.moved[0].told if self.drift.exceeds else ""


def apart(hour: Served, rng: random.Random) -> Compared:
    """Two windows of one hour that do not overlap, whichever comes first."""
    blocks = _length(rng, hour.blocks // 2)
    spare = hour.blocks - 2 * blocks
    before = rng.randint(0, spare)
    between = rng.randint(0, spare - before)
    starts = [before, before + blocks + between]
    rng.shuffle(starts)
    one, other = (hour.window(start, blocks) for start in starts)
    return Compared(hour.name, drift(one, other))


def dealt(hour: Served, rng: random.Random) -> Compared:
    """The same window on one half of the hosts and on the other."""
    blocks = _length(rng, hour.blocks)
    start = rng.randint(0, hour.blocks - blocks)
    half = len(hour.hosts) // 2
    return Compared(
        hour.name, drift(hour.window(start, blocks, slice(half)), hour.window(start, blocks, slice(half, None)))
    )


def across(one: Served, other: Served, rng: random.Random) -> Compared:
    """A window of each, of the same length."""
    blocks = _length(rng, min(one.blocks, other.blocks))
    windows = [hour.window(rng.randint(0, hour.blocks - blocks), blocks) for hour in (one, other)]
    rng.shuffle(windows)
    return Compared(f"{one.name}, {other.name}", drift(windows[0], windows[1]))


def _length(rng: random.Random, most: int) -> int:
    return min(most, rng.randint(*(BLOCKS_PER_MINUTE * minutes for minutes in MINUTES)))


def alarms_figure(name: str, how: str, pairs: Sequence[Compared]) -> Figure:
    alarms = [pair for pair in pairs if pair.told]
    share = len(alarms) / len(pairs)
    told = Counter(f"{pair.pair}: {pair.drift.moved[0].subject} {pair.drift.moved[0].axis}" for pair in alarms)
    what = "; ".join(f"{count} of {one}" for one, count in told.most_common())
    return Figure(
        name,
        ISSUE,
        f"at most {FALSE_ALARMS:.0%}",
        "%",
        COMMAND,
        round(100 * share, 2),
        _interval(len(alarms), len(pairs)),
        Outcome.MET if share <= FALSE_ALARMS else Outcome.MISSED,
        note=f"{len(alarms)} alarms; {how}; {MINUTES[0]} to {MINUTES[1]} minutes; in turn "
        f"{', '.join(hour.name for hour in HOURS)}" + (f"; alarms by what moved first: {what}" if what else ""),
    )


def detections_figure(pairs: Sequence[Compared]) -> Figure:
    found = [pair for pair in pairs if pair.told]
    by_operators = sum(any(move.subject != REQUESTS for move in pair.drift.moved) for pair in found)
    share = len(found) / len(pairs)
    missed = Counter(pair.pair for pair in pairs if not pair.told)
    return Figure(
        "drift: detections, pairs of windows across code and conversation",
        ISSUE,
        f"at least {DETECTIONS:.0%}",
        "%",
        COMMAND,
        round(100 * share, 2),
        _interval(len(found), len(pairs)),
        Outcome.MET if share >= DETECTIONS else Outcome.MISSED,
        note=f"{len(found)} of {len(pairs)}, half of them with Azure's and half with Mooncake's conversation; of these "
        f"{by_operators} by an operator's shapes, the others by requests alone"
        + "".join(f"; {count} missed of {pair}" for pair, count in missed.items()),
    )


def _interval(count: int, of: int) -> tuple[float, float]:
    """Wilson's, of a share, in per cent. Windows of several pairs overlap, so that it is rather too narrow."""
    share, z = count / of, 1.96
    middle = (share + z * z / 2 / of) / (1 + z * z / of)
    reach = z / (1 + z * z / of) * (share * (1 - share) / of + z * z / 4 / of / of) ** 0.5
    return round(100 * max(0.0, middle - reach), 2), round(100 * min(1.0, middle + reach), 2)


def measure(folder: Path, pairs: int, progress: ProgressLine, seed: int = 0) -> list[Figure]:
    """All rows.

    Raises:
        TraceError: a recording cannot be read.
    """
    model = model_operators(LLAMA_8B)
    hours = []
    for recording in HOURS:
        progress.show(f"serving {recording.name}")
        hours.append(served(recording, folder, model))
    rng = random.Random(seed)
    turns = itertools.cycle
    found: dict[str, list[Compared]] = {"apart": [], "dealt": [], "across": []}
    ways = {
        "apart": [functools.partial(apart, hour, rng) for hour in hours],
        "dealt": [functools.partial(dealt, hour, rng) for hour in hours],
        "across": [functools.partial(across, hours[0], other, rng) for other in hours[1:]],
    }
    for way, kinds in ways.items():
        for number, kind in zip(range(pairs), turns(kinds), strict=False):
            progress.show(f"windows {way}: {number + 1} of {pairs}")
            found[way].append(kind())
    return [
        alarms_figure(
            "drift: false alarms, pairs of windows of the same hour, apart in time",
            "windows of a pair do not overlap, and lie anywhere in the hour",
            found["apart"],
        ),
        alarms_figure(
            "drift: false alarms, pairs of windows of the same minutes, on different hosts",
            "each request is served by one half of the hosts, and both halves are compared",
            found["dealt"],
        ),
        detections_figure(found["across"]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the recordings (public, not ours)")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of windows of each kind; {PAIRS} count")
    parser.add_argument("--seed", type=int, default=0, help="draws other windows")
    parser.add_argument("--dry-run", action="store_true", help="print, but do not write docs/figures.json")
    found = parser.parse_args(arguments)
    missing = [hour.file for hour in HOURS if not (found.traces / hour.file).is_file()]
    if missing:
        print(
            f"no {', '.join(missing)} in {found.traces}: fetch them from github.com/Azure/AzurePublicDataset (data/) "
            "and github.com/kvcache-ai/Mooncake (FAST25-release/traces/, as mooncake_conversation_trace.jsonl), and "
            "name their folder with --traces",
            file=sys.stderr,
        )
        return 2
    with ProgressLine(sys.stderr) as progress:
        rows = measure(found.traces, found.pairs, progress, found.seed)
    return report(rows, keep=not found.dry_run and found.pairs >= PAIRS and found.seed == 0)


if __name__ == "__main__":
    sys.exit(main())
