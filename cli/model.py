"""`./mill model PATH`: the operators of a model, from its `config.json` or a recorded forward pass, by share of time.

With `--draft`, definitions for those that have none, for a person to review.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.amount import whole
from cli.errors import ModelFileError
from cli.progress import ProgressLine
from cli.table import compact_table
from gristmill import records
from tasks.settings import from_environment

if TYPE_CHECKING:
    from cli.model_draft import Drafted
    from cli.model_trace import Traced
    from kernels.definition import Cost
    from kernels.models.shares import Device, Share
    from kernels.models.step import OperatorCall, StepBatch

CONFIG = "config.json"
MAX_CONFIG_BYTES = 16 << 20
LEAST_SHOWN = 0.0005
"""Share of the time below which an operator that has a definition is left out of the table; `--json` has all."""
MOST_FAILURES = 3


@dataclass(frozen=True)
class Listing:
    """What is known of a model."""

    title: str
    facts: dict[str, Any]
    calls: list[tuple[OperatorCall, Cost]]
    config: dict[str, Any] | None


MOST_REQUESTS = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help="a model's config.json, or its folder")
    parser.add_argument("--requests", type=_requests, default=32, help="that decode in the step (default: 32)")
    parser.add_argument("--context", type=whole, default=2048, help="tokens that each has behind it (default: 2048)")
    parser.add_argument(
        "--prefill", type=whole, default=0, help="tokens of a prompt read in the same step (default: 0)"
    )
    parser.add_argument("--packed", action="store_true", help="query, key, value and gate, up are one projection each")
    parser.add_argument("--device", default="local", metavar="NAME", help="whose roofline (default: this machine's)")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="a .py file with example(tokens), or an exported .pt2, to record"
    )
    parser.add_argument("--draft", type=Path, metavar="DIR", help="write definitions for operators that have none")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    if arguments.path is None and arguments.trace is None:
        raise ModelFileError("model: name a config.json, or a file to record with --trace")
    from cli import model_trace
    from kernels.models.shares import shares

    traced = model_trace.traced(arguments.trace) if arguments.trace is not None else None
    listing = _configured(arguments) if arguments.path is not None else _recorded(arguments.trace, traced)
    device = _device(arguments.device)
    shared = shares(listing.calls, device)
    drafts = _drafts(arguments.draft, listing, traced) if arguments.draft is not None else []
    if arguments.json:
        print(json.dumps(_facts(listing, device, shared, drafts), indent=2))
    else:
        print(_report(listing, device, shared, drafts))
    return 0


def _configured(arguments: argparse.Namespace) -> Listing:
    from kernels.models import vocabulary
    from kernels.models.listing import model_operators

    config = read_config(arguments.path)
    made = model_operators(config, packed=arguments.packed)
    batch = _batch(arguments)
    calls = [(call, vocabulary.cost(call)) for call in made.calls(batch)]
    facts = {
        "family": made.architecture.family,
        "dtype": made.dtype,
        "parameters": made.parameters,
        "step": records.encode(batch),
    }
    title = f"{made.architecture.family}, {made.parameters:,} parameters, {made.dtype}"
    return Listing(f"{title}; {batch.tokens} tokens of {batch.requests} requests", facts, calls, config)


def _requests(text: str) -> int:
    """Each has a place in the step, so that what no engine runs would fill the memory."""
    number = whole(text)
    if number > MOST_REQUESTS:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number up to {MOST_REQUESTS}")
    return number


def _batch(arguments: argparse.Namespace) -> StepBatch:
    from kernels.models.step import StepBatch

    prefill = ((arguments.prefill, 0),) if arguments.prefill else ()
    return StepBatch((arguments.context + 1,) * arguments.requests, prefill)


def read_config(path: Path) -> dict[str, Any]:
    """The file's object.

    Raises:
        ModelFileError: there is no such file, or no JSON object in it.
    """
    file = path / CONFIG if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_CONFIG_BYTES + 1)  # a device has no end
        if len(content) > MAX_CONFIG_BYTES:
            raise ModelFileError(f"{file}: more than {MAX_CONFIG_BYTES} bytes; expected a model's {CONFIG}")
        found = json.loads(content)
    except OSError as error:
        raise ModelFileError(f"{file}: {error.strerror or error}; name a model's {CONFIG}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file}: not JSON ({str(error)[:80]}); expected a model's {CONFIG}") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{file}: found {type(found).__name__}, expected an object, as {CONFIG} holds it")
    return found


def _recorded(path: Path, traced: Traced | None) -> Listing:
    from kernels.models.recognition import Recognition
    from kernels.models.step import OperatorCall

    counts: dict[str, int] = {}
    first: dict[str, tuple[OperatorCall, Cost]] = {}
    for found in Recognition(traced.recordings[0]).calls() if traced is not None else []:
        counts[found.call.label] = counts.get(found.call.label, 0) + 1
        first.setdefault(found.call.label, (found.call, found.cost))
    calls = [
        (OperatorCall(call.operator, call.axes, call.dtype, counts[label]), cost)
        for label, (call, cost) in first.items()
    ]
    return Listing(f"{path.name}, one recorded forward pass", {"recorded": path.name}, calls, None)


def _device(name: str) -> Device:
    from kernels.models import shares
    from kernels.roofline import cached_peaks

    return shares.measured(cached_peaks(from_environment().peaks_path)) if name == shares.LOCAL else shares.device(name)


def _drafts(folder: Path, listing: Listing, traced: Traced | None) -> list[Drafted]:
    """From the file to be recorded; without one, from a small model that transformers makes of the configuration."""
    from cli import model_draft
    from kernels.models import vocabulary

    wanted = list(dict.fromkeys(call.operator for call, _ in listing.calls if not vocabulary.is_defined(call)))
    with ProgressLine(sys.stderr) as progress:
        progress.show("recording a small model")
        recordings, names = (traced.recordings, traced.names) if traced is not None else _examples(listing)
        return model_draft.drafted(wanted, recordings, names, folder, progress.show)


def _examples(listing: Listing) -> tuple[tuple[Any, ...], dict[Any, str]]:
    from cli import model_example
    from kernels.models.families import architecture

    config = listing.config or {}
    model = architecture(config)
    inner = config.get("text_config", config)
    sizes = range(len(model_example.TOKENS))
    models = [model_example.build(model_example.small_config(inner, model, size)) for size in sizes]
    recordings = [model_example.recorded(models[size], model_example.TOKENS[size]) for size in sizes]
    return tuple(recordings), dict(model_example.NAMES)


def _facts(listing: Listing, device: Device, shared: Sequence[Share], drafts: Sequence[Drafted]) -> dict[str, object]:
    from kernels.models import vocabulary

    operators = [
        {
            "operator": share.call.operator,
            "axes": share.call.axes,
            "dtype": share.call.dtype,
            "calls": share.call.count,
            "time_share": share.time_share,
            "defined": vocabulary.is_defined(share.call),
        }
        for share in shared
    ]
    return {**listing.facts, "device": device.name, "operators": operators, "drafts": records.encode(list(drafts))}


def _report(listing: Listing, device: Device, shared: Sequence[Share], drafts: Sequence[Drafted]) -> str:
    from kernels.models import vocabulary

    shown = [s for s in shared if s.time_share >= LEAST_SHOWN or not vocabulary.is_defined(s.call)]
    rows = [
        [
            share.call.operator,
            " ".join(f"{name}={extent}" for name, extent in share.call.axes.items()),
            share.call.dtype,
            share.call.count,
            f"{share.time_share:.1%}",
            "yes" if vocabulary.is_defined(share.call) else "no",
        ]
        for share in shown
    ]
    covered = sum(share.time_share for share in shared if vocabulary.is_defined(share.call))
    step_ms = sum(share.time_ns for share in shared) / 1e6
    lines = [
        listing.title,
        "",
        compact_table(rows, ["operator", "axes", "dtype", "calls", "share", "definition"]),
        "",
        f"{step_ms:.3g} ms at the roofline of {device.name}; {covered:.0%} of it in operators that have a definition",
    ]
    return "\n".join([*lines, *_told(drafts)])


def _told(drafts: Sequence[Drafted]) -> list[str]:
    if not drafts:
        return []
    lines = ["", "drafts, for a person to review:"]
    for one in drafts:
        if not one.file:
            lines.append(f"  {one.operator}: not drafted: {one.reason}")
            continue
        results = [f"{s.dtype} {s.probes - len(s.failures)} of {s.probes} right" for s in one.sharpness]
        lines.append(f"  {one.file}: sharpness {', '.join(results)}")
        for failure in [f for s in one.sharpness for f in s.failures][:MOST_FAILURES]:
            lines.append(f"    {failure}")
    return lines
