"""What a demo found, as a report page and as a short text."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from cli.table import compact_table
from flows.demo import DemoResult
from gristmill.hardware import local_cpu
from gristmill.kernel_table import Artifact
from gristmill.serving.paired import PairedResult
from kernels.roofline import cached_peaks
from tasks import compilation, journal, report_rows
from tasks.report_data import ConcurrencyRow, DemoReport, OperatorTimeRow
from tasks.settings import Settings


def report_of(result: DemoResult, settings: Settings, elapsed_s: float, memory_bytes: int) -> DemoReport:
    """The page's content."""
    cpu = local_cpu()
    entries = journal.read(compilation.journal_path(settings, result.search.search_id))
    widest = max(result.runs, key=lambda run: run.concurrency)
    profile = result.captured.profile
    peaks = cached_peaks(settings.peaks_path)
    return DemoReport(
        title="Gristmill: one turn of the mill",
        created_utc=datetime.now(UTC).isoformat(timespec="minutes"),
        host=f"{cpu.description}, {cpu.cores} cores",
        facts={
            "Trace": f"{result.trace}, {len(result.requests)} requests",
            "Model": f"{profile.model}, {profile.workloads[0].dtype}, random weights",
            "Memory bandwidth": f"{peaks.memory_bandwidth_gb_s:.0f} GB/s",
            "Versions": ", ".join(f"{name} {version}" for name, version in sorted(profile.versions.items())),
            "Search": result.search.search_id,
            "Took": f"{elapsed_s:.0f} s, {memory_bytes / 2**30:.1f} GiB at most",
        },
        traffic=report_rows.traffic_rows(profile, result.captured.ranked),
        searches=tuple(report_rows.search_row(search, entries) for search in result.search.operators),
        **report_rows.search_sections(profile.workloads, entries),
        kernels=report_rows.kernel_rows(result.artifacts, _hits(result)),
        concurrency=tuple(
            ConcurrencyRow(
                run.concurrency,
                run.engine_tokens_per_s,
                run.kernels_tokens_per_s,
                run.ratio,
                run.ratio_low,
                run.ratio_high,
                len(run.pairs),
            )
            for run in result.runs
        ),
        operator_times=tuple(
            OperatorTimeRow(name, before_ns / 1e6, widest.kernels_operator_ns.get(name, 0.0) / 1e6)
            for name, before_ns in sorted(widest.engine_operator_ns.items(), key=lambda item: -item[1])
        ),
        tokens_equal=all(not run.differences for run in result.runs),
        token_comparison=token_comparison(result.runs),
        latencies_ms={name: seconds * 1e3 for name, seconds in result.latencies_s.items()},
        phases_s=result.phases_s,
        commands={
            "look at every candidate and flow": "./mill ui",
            "serve on, following the channel": "./mill serve",
            "undo the promotion": "./mill rollback",
            "what the channel served": "./mill registry log",
        },
    )


def summary(result: DemoResult, elapsed_s: float, memory_bytes: int) -> str:
    """The compact tables that a terminal shows at the end."""
    speed = [
        [
            run.concurrency,
            f"{run.engine_tokens_per_s:.1f}",
            f"{run.kernels_tokens_per_s:.1f}",
            f"{run.ratio:.2f}x",
            f"{run.ratio_low:.2f} to {run.ratio_high:.2f}",
        ]
        for run in result.runs
    ]
    widest = max(result.runs, key=lambda run: run.concurrency)
    times = [
        [name, f"{before / 1e6:.2f}", f"{widest.kernels_operator_ns.get(name, 0.0) / 1e6:.2f}"]
        for name, before in sorted(widest.engine_operator_ns.items(), key=lambda item: -item[1])
    ]
    promoted = [
        [
            artifact.table.operator,
            len(artifact.table.entries),
            " to ".join(f"{ratio:.2f}x" for ratio in _extremes(artifact)),
            len({entry.candidate for entry in artifact.table.entries}),
            sum(
                run.hits.get(c, 0) for run in result.runs for c in {entry.candidate for entry in artifact.table.entries}
            ),
        ]
        for artifact in result.artifacts
    ]
    latencies = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.latencies_s.items())
    return "\n\n".join(
        [
            compact_table(speed, ["requests at a time", "tokens/s before", "after", "ratio", "95 % interval"]),
            compact_table(times, [f"per decode step of {widest.concurrency}", "ms before", "ms after"]),
            compact_table(promoted, ["promoted", "ranges", "gain alone", "kernels", "hits"]),
            f"tokens    {token_comparison(result.runs)}\n"
            f"gate      {'released' if result.decision.promote else 'not released'}: {result.decision.reason}\n"
            f"swaps     {latencies}\n"
            f"took      {elapsed_s:.0f} s, {memory_bytes / 2**30:.1f} GiB at most",
        ]
    )


def token_comparison(runs: tuple[PairedResult, ...]) -> str:
    """Whether both arms decoded the same tokens; where they part, and how close the choice was."""
    compared = sum(run.compared_tokens for run in runs)
    differences = [difference for run in runs for difference in run.differences]
    if not differences:
        return f"all {compared} greedy tokens are the same with and without the kernels"
    closest = max(differences, key=lambda d: d.top2_gap)
    return (
        f"{len(differences)} of {compared} greedy tokens differ; at the clearest of them the engine's best two "
        f"logits are {closest.top2_gap:.2g} apart (logits spread over {closest.logit_scale:.2g}), so rounding decided"
    )


def _hits(result: DemoResult) -> dict[str, int]:
    """Calls served in all runs, by candidate."""
    found: Counter[str] = Counter()
    for run in result.runs:
        found.update(run.hits)
    return dict(found)


def _extremes(artifact: Artifact) -> tuple[float, float]:
    ratios = [float(entry.ratio) for entry in artifact.table.entries]
    return min(ratios), max(ratios)
