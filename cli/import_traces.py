"""`./mill import KIND FILE...`: a traffic profile from traces that others wrote, for fleets without the plugin."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cli.amount import count, not_negative, positive, whole
from cli.table import compact_table
from gristmill import durable_file, records
from tasks.settings import from_environment

if TYPE_CHECKING:
    from kernels.imports.imported import Imported
    from tasks.trace_imports import ImportOptions

KINDS = {
    "torch": "traces of torch.profiler (record_shapes=True), json or json.gz",
    "flashinfer": "a data set of FlashInfer-Bench, or files of it",
    "azure": "requests: Azure's LLM inference traces, CSV",
    "mooncake": "requests: Mooncake's traces, JSON lines",
    "burstgpt": "requests: BurstGPT, CSV",
    "otel": "requests: OpenTelemetry spans of generative AI, OTLP JSON",
}


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=kinds)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files, or folders of a data set")
    parser.add_argument("--start", type=_moment, help="when a trace began that does not say so (ISO 8601, UTC)")
    parser.add_argument("--hardware", help="hardware key of the fleet; by default this machine's")
    parser.add_argument("--device-tflops", type=positive, help="of the fleet's device; by default measured here")
    parser.add_argument("--device-gb-s", type=positive, help="its memory bandwidth; likewise")
    parser.add_argument("--out", type=Path, metavar="PROFILE", help="write the profile to a file, and do not keep it")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    requests = parser.add_argument_group("requests", "what an engine would have made of them")
    requests.add_argument("--model-config", type=Path, metavar="CONFIG", help="the model's config.json")
    requests.add_argument("--packed", action="store_true", help="the engine joins projections of one input (as vLLM)")
    requests.add_argument("--max-tokens", type=count, default=8192, help="per step")
    requests.add_argument("--max-sequences", type=count, default=256, help="that run at the same time")
    requests.add_argument("--no-chunks", action="store_true", help="prompts are read whole, in steps of their own")
    requests.add_argument("--step-ms", type=positive, default=20.0, help="of any step, however little it holds")
    requests.add_argument("--token-us", type=not_negative, default=50.0, help="added by each token of a step")
    requests.add_argument("--engines", type=count, default=1, help="that share the requests; one is simulated")
    requests.add_argument("--only-model", default="", help="requests to this model, where the trace names them")
    requests.add_argument("--cache-tokens", type=whole, default=0, help="of a prefix cache; Mooncake only")


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from cli.progress import ProgressLine
    from tasks import object_store, traffic
    from tasks.trace_imports import import_traces

    settings = from_environment()
    if arguments.hardware:
        settings = replace(settings, hardware=_hardware(arguments.hardware))
    options = _options(arguments)
    if arguments.out and (arguments.out.is_dir() or not arguments.out.parent.is_dir()):
        _refuse_out(arguments.out, "is a folder" if arguments.out.is_dir() else "its folder is not there")
    with ProgressLine(sys.stderr) as progress:

        def tell(read_bytes: int, of_bytes: int) -> None:
            progress.show(f"{arguments.kind}: {read_bytes / max(1, of_bytes):.0%} of {of_bytes / 1e6:.1f} MB read")

        progress.show(f"{arguments.kind}: opening {len(arguments.files)} files")
        found = import_traces(arguments.kind, arguments.files, settings, options, tell)
    if arguments.out:
        _write(arguments.out, records.canonical_json(found.profile))
    else:
        with object_store.opened(settings) as opened:
            traffic.keep_profile(opened.store, settings, found.profile)
    print(_as_json(found) if arguments.json else _as_text(found, arguments.out))
    return 0


def _write(out: Path, content: bytes) -> None:
    try:
        durable_file.write(out, content)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # every command tells this alike
        _refuse_out(out, error.strerror)


def _refuse_out(out: Path, why: str) -> NoReturn:
    from cli.errors import ImportArgumentsError

    raise ImportArgumentsError(f"mill import: --out {out}: {why}; name a file that can be written")


def _options(arguments: argparse.Namespace) -> ImportOptions:
    from cli.errors import ImportArgumentsError
    from kernels.imports.batching import Limits
    from kernels.imports.modelled import Device
    from tasks.trace_imports import ImportOptions

    if (arguments.device_tflops is None) != (arguments.device_gb_s is None):
        raise ImportArgumentsError("mill import: --device-tflops and --device-gb-s go together; give both")
    device = None
    if arguments.device_tflops is not None:
        device = Device(arguments.device_tflops, arguments.device_gb_s)
    return ImportOptions(
        model_config=arguments.model_config,
        packed=arguments.packed,
        limits=Limits(
            max_tokens=arguments.max_tokens,
            max_sequences=arguments.max_sequences,
            chunked=not arguments.no_chunks,
            step_ns=round(arguments.step_ms * 1e6),
            token_ns=round(arguments.token_us * 1e3),
        ),
        only_model=arguments.only_model,
        cache_tokens=arguments.cache_tokens,
        engines=arguments.engines,
        start_ns=arguments.start,
        device=device,
    )


def _operators(found: Imported) -> list[dict[str, object]]:
    from kernels.profile import by_operator

    whole_ns = found.profile.time_ns / found.covered_share if found.covered_share else 0.0
    rows = []
    for (operator, dtype), workloads in by_operator(found.profile.workloads).items():
        share = sum(w.time_ns for w in workloads) / whole_ns if whole_ns else 0.0
        calls = sum(w.calls for w in workloads)
        rows.append({"operator": operator, "dtype": dtype, "calls": calls, "workloads": len(workloads), "share": share})
    return sorted(rows, key=lambda row: -float(str(row["share"])))


def _as_json(found: Imported) -> str:
    facts = {
        "profile": records.digest(found.profile),
        "kind": found.kind,
        "window": [found.profile.window_start_utc, found.profile.window_end_utc],
        "covered_share": found.covered_share,
        "operators": _operators(found),
        "uncovered": records.encode(found.uncovered),
        "facts": found.facts,
    }
    return json.dumps(facts, indent=2)


def _as_text(found: Imported, out: Path | None) -> str:
    profile = found.profile
    covered = [
        [row["operator"], row["dtype"], row["calls"], row["workloads"], f"{float(str(row['share'])):.1%}", "yes"]
        for row in _operators(found)
    ]
    rest = [
        [*f"{one.operator} ".split(" ")[:2], one.calls, None, f"{one.time_share:.1%}", "no"] for one in found.uncovered
    ]
    return "\n".join(
        [
            ", ".join(f"{name} {number:,}" for name, number in found.facts.items()),
            compact_table([*covered, *rest], ["operator", "dtype", "calls", "workloads", "time", "can be compiled"]),
            f"profile {records.short(records.digest(profile))}: {profile.window_start_utc} to "
            f"{profile.window_end_utc}, "
            f"{found.covered_share:.1%} of the time can be compiled for; "
            + (f"written to {out}" if out else "kept, ./mill rank goes on from it"),
        ]
    )


def _hardware(key: str) -> str:
    from cli.errors import ImportArgumentsError
    from gristmill.errors import StoreAddressError
    from gristmill.store import checked_key

    try:
        if "/" not in checked_key(key):
            return key
    except StoreAddressError:
        pass
    raise ImportArgumentsError(f"mill import: --hardware is {key!r}, expected a key as ./mill doctor shows it")


def _moment(text: str) -> int:
    """Nanoseconds since 1970."""
    from kernels.imports.request_traces import MAX_ARRIVAL_NS

    try:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds * 1e9 < MAX_ARRIVAL_NS:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a time like 2026-12-02T19:00 (UTC), from 1970 to 2262"
        )
    return round(seconds) * 10**9
