"""What a demo on vLLM found, as a report page, as a short text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from cli.table import compact_table
from flows.demo_vllm import VllmDemoResult
from gristmill.hardware import local_cpu
from kernels.roofline import cached_peaks
from tasks import compilation, journal, report_rows
from tasks.engine_trial import ENGINE, KERNELS, Ratio, Trial
from tasks.report_data import ConcurrencyRow, DemoReport, OperatorTimeRow
from tasks.settings import Settings

MEASURES = {"tokens_per_s": "tokens/s", "ttft_s": "TTFT", "tpot_s": "TPOT"}


@dataclass(frozen=True)
class OperatorOutcome:
    """What came of one operator, and why."""

    operator: str
    share: float
    """Of the engine's sampled operator time; 0 for one that was not sampled."""
    outcome: str


@dataclass(frozen=True)
class VllmFacts:
    """What `--json` prints."""

    promoted: bool
    reason: str
    ratios: dict[str, dict[str, Ratio]]
    """By measure and number of concurrent requests: with kernels over without."""
    outcomes: tuple[OperatorOutcome, ...]
    trial: Trial
    report: DemoReport


def facts(result: VllmDemoResult, report: DemoReport) -> VllmFacts:
    """The page's content and all pairs behind it."""
    decision = result.decision
    return VllmFacts(decision.promote, decision.reason, _ratios(result.trial), outcomes(result), result.trial, report)


def outcomes(result: VllmDemoResult) -> tuple[OperatorOutcome, ...]:
    """Per operator: promoted with its gain, or why not."""
    gains: dict[str, tuple[str, ...]] = {
        artifact.table.operator: tuple(entry.ratio for entry in artifact.table.entries) for artifact in result.artifacts
    }
    hits = result.trial.hits
    used = {
        artifact.table.operator: sum(hits.get(one, 0) for one in {entry.candidate for entry in artifact.table.entries})
        for artifact in result.artifacts
    }
    searches = {(search.operator, search.dtype): search for search in result.search.operators}
    found = []
    for ranked in result.captured.ranked:
        search = searches.get((ranked.operator, ranked.dtype))
        if ranked.operator in gains:
            ratios = sorted(float(ratio) for ratio in gains[ranked.operator])
            text = f"proven alone: {ratios[0]:.2f}x to {ratios[-1]:.2f}x, {used[ranked.operator]:,} hits"
        elif search is None:
            text = "not searched: the budget went to operators that could save more"
        else:
            text = f"no gain survived: {search.trials} candidates, {search.statuses.get('faster', 0)} faster at first"
        found.append(OperatorOutcome(ranked.operator, ranked.time_share, text))
    left = result.status.get("left", {})
    return (*found, *(OperatorOutcome(name, 0.0, f"stays with the engine: {why}") for name, why in left.items()))


def report_of(result: VllmDemoResult, settings: Settings, elapsed_s: float, memory_bytes: int) -> DemoReport:
    """The page's content."""
    cpu = local_cpu()
    entries = journal.read(compilation.journal_path(settings, result.search.search_id))
    profile, trial, hits = result.captured.profile, result.trial, result.trial.hits
    peaks = cached_peaks(settings.peaks_path)
    speeds = {concurrency: trial.ratio("tokens_per_s", concurrency) for concurrency in trial.concurrencies}
    return DemoReport(
        title="Gristmill: one turn of the mill on vLLM",
        created_utc=datetime.now(UTC).isoformat(timespec="minutes"),
        host=f"{cpu.description}, {cpu.cores} cores",
        facts={
            "Trace": f"{result.trace}, {len(result.requests)} requests",
            "Model": f"{profile.model}, {profile.workloads[0].dtype}, dummy weights",
            "Memory bandwidth": f"{peaks.memory_bandwidth_gb_s:.0f} GB/s",
            "Versions": ", ".join(f"{name} {version}" for name, version in sorted(profile.versions.items())),
            "Gate": result.decision.reason,
            "Took": f"{elapsed_s:.0f} s, {memory_bytes / 2**30:.1f} GiB at most",
        },
        traffic=report_rows.traffic_rows(profile, result.captured.ranked),
        searches=tuple(report_rows.search_row(search, entries) for search in result.search.operators),
        **report_rows.search_sections(profile.workloads, entries),
        kernels=report_rows.kernel_rows(result.artifacts, hits),
        concurrency=tuple(
            ConcurrencyRow(
                concurrency,
                _mean(trial, concurrency, ENGINE),
                _mean(trial, concurrency, KERNELS),
                speed.middle,
                speed.low,
                speed.high,
                len(trial.pairs(concurrency)),
            )
            for concurrency, speed in speeds.items()
        ),
        operator_times=tuple(
            OperatorTimeRow(name, before_ns / 1e6, after_ns / 1e6)
            for name, (before_ns, after_ns) in _operator_ns(trial).items()
        ),
        tokens_equal=not any(start.differences for start in trial.starts) if trial.starts else None,
        token_comparison=_tokens(trial),
        latencies_ms={name: seconds * 1e3 for name, seconds in result.latencies_s.items()},
        phases_s=result.phases_s,
        commands={"look at every candidate and flow": "./mill ui"},
    )


def summary(result: VllmDemoResult, elapsed_s: float, memory_bytes: int) -> str:
    """The compact tables that a terminal shows at the end."""
    trial = result.trial
    speed = [
        [
            MEASURES[measure],
            concurrency,
            f"{_mean(trial, concurrency, ENGINE, measure):.4g}",
            f"{_mean(trial, concurrency, KERNELS, measure):.4g}",
            f"{ratio.middle:.3f}x",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
        ]
        for measure in MEASURES
        for concurrency in trial.concurrencies
        for ratio in (trial.ratio(measure, concurrency),)
    ]
    times = [
        [name, f"{before / 1e3:.1f}", f"{after / 1e3:.1f}"] for name, (before, after) in _operator_ns(trial).items()
    ]
    told = [[one.operator, f"{one.share:.0%}" if one.share else "", one.outcome] for one in outcomes(result)]
    verdict = "released" if result.decision.promote else "no gain worth promoting"
    latencies = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.latencies_s.items())
    measured = [
        compact_table(speed, ["measure", "at a time", "before", "after", "ratio", "95 % interval"]),
        compact_table(times, ["per generated token", "us before", "us after"]),
    ]
    return "\n\n".join(
        [
            *(measured if trial.starts else []),
            compact_table(told, ["operator", "share", "outcome"]),
            f"tokens    {_tokens(trial)}\n"
            f"processor {_processor(trial)}\n"
            f"gate      {verdict}: {result.decision.reason}\n"
            f"swaps     {latencies or 'none'}\n"
            f"took      {elapsed_s:.0f} s, {memory_bytes / 2**30:.1f} GiB at most",
        ]
    )


def _ratios(trial: Trial) -> dict[str, dict[str, Ratio]]:
    return {
        measure: {str(concurrency): trial.ratio(measure, concurrency) for concurrency in trial.concurrencies}
        for measure in MEASURES
    }


def _mean(trial: Trial, concurrency: int, arm: str, measure: str = "tokens_per_s") -> float:
    values = [getattr(getattr(pair, arm), measure) for pair in trial.pairs(concurrency)]
    return float(sum(values) / len(values)) if values else 0.0


def _operator_ns(trial: Trial) -> dict[str, tuple[float, float]]:
    """Per generated token, mean over starts, the longest first: before and after."""
    names = {name for start in trial.starts for name in start.operator_ns[ENGINE]}
    found = {
        name: tuple(
            sum(start.operator_ns[arm].get(name, 0.0) for start in trial.starts) / len(trial.starts)
            for arm in (ENGINE, KERNELS)
        )
        for name in names
    }
    return {name: (one[0], one[1]) for name, one in sorted(found.items(), key=lambda item: -item[1][0])}


def _processor(trial: Trial) -> str:
    """Of the worker, in each start."""
    ratios = [start.cpu_ns[ENGINE] / start.cpu_ns[KERNELS] for start in trial.starts if start.cpu_ns.get(KERNELS)]
    told = " and ".join(f"{ratio:.3f}x" for ratio in ratios)
    return f"{told} as many tokens per processor second of the worker" if told else "not measured"


def _tokens(trial: Trial) -> str:
    compared = sum(start.compared_tokens for start in trial.starts)
    differences = [one for start in trial.starts for one in start.differences]
    requests = sum(start.compared_requests for start in trial.starts)
    if not differences:
        return f"all {compared} greedy tokens are the same with and without the kernels"
    gaps = [one.gap for one in differences if one.gap is not None]
    clearest = (
        f"; the engine's best token stood out by {max(gaps):.0%} of its lead over the 20th at most" if gaps else ""
    )
    return f"{len(differences)} of {requests} requests part from the engine's tokens{clearest}"
