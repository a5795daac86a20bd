"""One whole turn of the mill against a live serving process: capture, compile, promote, prove, roll back and forth.

The serving process runs from the first phase to the last; kernels are swapped into it while it serves.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from flows import demo_state, steps
from flows.capture import Captured, capture_steps
from flows.compile import compile_steps
from flows.promote import promote_steps, release_steps
from flows.rollback import rollback_steps
from gristmill import records
from gristmill.kernel_table import Artifact
from gristmill.serving.paired import PairedResult
from gristmill.traces import Request, quantile_requests, read_trace, scale
from harness.builder import find_compiler
from registry.doctor import require_conditional_puts
from registry.errors import ApprovalError
from registry.keys import create_keys
from registry.promotion import Decision
from registry.repository import Repository
from tasks import mlflow_mirror, object_store, promotion, results
from tasks.compilation import Progress, SearchResult
from tasks.errors import NoWinnerError, ServingError
from tasks.object_store import OpenStore
from tasks.release import decide_release
from tasks.serving_client import Event, ServingProcess
from tasks.settings import REPOSITORY, Settings

SHARED_TRACE = REPOSITORY.parent / "shared" / "traces" / "AzureLLMInferenceTrace_code.csv"
"""The trace where developers have it; a stranger's clone draws from the quantiles in the package."""
SWAP_TIMEOUT_S = 60.0


class DemoProgress(Progress, Protocol):
    """Told of everything, as it happens."""

    def say(self, phase: str, text: str) -> None: ...


@dataclass(frozen=True)
class DemoSettings:
    """How long, how much."""

    trace: Path | None = None
    """Azure CSV or Mooncake JSONL; the shared Azure code trace, or quantiles of it, if not given."""
    requests: int = 32
    """Replayed per concurrency while traffic is captured."""
    prompt_factor: float = 1 / 32
    """Prompts are shortened by this: two cores prefill what eight GPUs did."""
    max_prompt: int = 96
    max_generated: int = 24
    concurrency: tuple[int, ...] = (4, 8)
    budget_s: float = 65.0
    proof_s: float = 0.3
    """Seconds of measuring per workload in the second judgement; a real promotion takes longer."""
    pairs: int = 16
    block_steps: int = 6
    dtype: str = "float32"
    channel: str = "canary"

    @property
    def options(self) -> list[object]:
        """What a resumed demo must have in common with the interrupted one."""
        return [str(self.trace), self.requests, self.budget_s, self.dtype, self.channel]


@dataclass
class DemoResult:
    """Everything that the report tells."""

    trace: str
    requests: tuple[Request, ...]
    captured: Captured
    search: SearchResult
    artifacts: tuple[Artifact, ...]
    runs: tuple[PairedResult, ...]
    decision: Decision
    status: Event
    latencies_s: dict[str, float] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)


class Demo:
    """Runs the phases in order; each is skipped if an interrupted run has done it."""

    def __init__(
        self,
        settings: Settings,
        demo: DemoSettings,
        progress: DemoProgress,
        *,
        fresh: bool,
        before_flows: Callable[[], None] = lambda: None,
        name: str = "demo",
    ) -> None:
        """`before_flows` is called once, before the first flow runs: what flows need may start up until then. `name` is
        of the folder that holds the state.
        """
        self._settings = settings
        self._demo = demo
        self._progress = progress
        self._before_flows = before_flows
        self._folder = settings.home / name
        find_compiler()
        self._state, self.resumed = demo_state.begin(self._folder, records.digest(demo.options), fresh=fresh)
        self._phases_s: dict[str, float] = {}
        self._latencies_s: dict[str, float] = {}
        self._swapped_s: dict[int, float] = {}
        self.trace_name, self._requests = read_requests(demo, self._state.seed)

    def run(self) -> DemoResult:
        """The whole turn.

        Raises:
            GristmillError: with what stopped it; running it again goes on from there.
        """
        settings = self._settings
        with object_store.opened(settings) as opened:
            self._prepare_registry(opened)
            with self._serving(opened) as process:
                with self._phase("serve"):
                    process.wait_ready()
                    self._serve(process)
                with self._phase("capture"):
                    self._before_flows()
                    captured = self._capture()
                with self._phase("search"):
                    search = self._compile()
                with self._phase("promote"):
                    artifacts = self._promote(process)
                with self._phase("prove"):
                    runs, decision = self._prove(process)
                with self._phase("roll back"):
                    self._drill(process)
                status = process.status()
            steps.run("mirror", lambda step: step(mlflow_mirror.keep_mirror)(settings))
        demo_state.end(self._folder)
        return DemoResult(
            self.trace_name,
            self._requests,
            captured,
            search,
            artifacts,
            runs,
            decision,
            status,
            self._latencies_s,
            self._phases_s,
        )

    def _prepare_registry(self, opened: OpenStore) -> None:
        """Traffic is captured where nothing is promoted, whatever earlier demos left on the channel."""
        require_conditional_puts(opened.store)
        keyring = create_keys(self._settings.keys_dir)
        repository = Repository(opened.store, keyring)
        repository.initialise()
        repository.renew()
        channel = promotion.channel_of(self._settings, self._demo.channel)
        current = repository.current(channel)
        if not self._state.captured and current is not None and current.index.tables:
            rollback_steps(self._settings, self._demo.channel, 0, steps.plain)
        demo_state.keep(self._folder, self._state)

    @contextlib.contextmanager
    def _serving(self, opened: OpenStore) -> Iterator[ServingProcess]:
        self._progress.say("serve", f"starting a serving process: 8-layer Llama, {self._demo.dtype}, random weights")
        flags = serving_flags(self._settings, self._demo, opened)
        log = self._settings.home / "logs" / "serving.log"
        with ServingProcess(flags, opened.environ, log, self._on_event) as process:
            yield process

    def _serve(self, process: ServingProcess) -> None:
        if self._state.captured:
            self._progress.say("serve", "traffic was captured before the interruption")
            return
        for concurrency in self._demo.concurrency:
            summary = process.replay(self._requests, concurrency, self._state.seed)
            self._progress.say(
                "serve",
                f"{summary['finished']} requests, {concurrency} at a time: {summary['tokens_per_s']:.1f} "
                "decode tokens/s with the engine's own kernels",
            )
        process.flush()

    def _capture(self) -> Captured:
        window_h = (datetime.now(UTC) - datetime.fromisoformat(self._state.started_utc)).total_seconds() / 3600 + 0.01
        captured = steps.run("capture", lambda step: capture_steps(self._settings, window_h, step))
        self._advance(captured=True)
        calls = sum(workload.calls for workload in captured.profile.workloads)
        self._progress.say("capture", f"{calls:,} operator calls, {len(captured.profile.workloads)} workloads")
        for ranked in captured.ranked:
            self._progress.say(
                "capture",
                f"{ranked.operator:<19} {ranked.time_share:6.1%} of operator time, headroom {ranked.headroom:4.0%}: "
                f"could save {ranked.saving_share:5.1%}",
            )
        return captured

    def _compile(self) -> SearchResult:
        if self._state.search_id:
            self._progress.say("search", "was done before the interruption")
            return results.load(self._settings, self._state.search_id).result
        result = steps.run(
            "compile",
            lambda step: compile_steps(
                self._settings, step, budget_s=self._demo.budget_s, seed=self._state.seed, progress=self._progress
            ),
        )
        self._advance(search_id=result.search_id)
        return result

    def _promote(self, process: ServingProcess) -> tuple[Artifact, ...]:
        """Publishes while the process serves, and waits until it runs what was published."""
        told_s = 0.0

        def tell(text: str) -> None:
            nonlocal told_s
            told_s = time.monotonic()
            self._progress.say("promote", text)

        try:
            published, artifacts = steps.run(
                "promote",
                lambda step: promote_steps(
                    self._settings,
                    step,
                    channel=self._demo.channel,
                    search_id=self._state.search_id,
                    proof_s=self._demo.proof_s,
                    tell=tell,
                ),
            )
        except NoWinnerError:
            self._advance(search_id="", seed=self._state.seed + 1)  # the next run searches anew
            raise
        self._progress.say("promote", f"signed and published as generation {published.number} of {published.channel}")
        self._await_swap(process, published.number, told_s, "publish to swap")
        self._advance(generation=published.number)
        return artifacts

    def _prove(self, process: ServingProcess) -> tuple[tuple[PairedResult, ...], Decision]:
        demo = self._demo
        answer = process.paired(
            self._requests, demo.concurrency, pairs=demo.pairs, block_steps=demo.block_steps, seed=self._state.seed
        )
        runs = tuple(records.decode(PairedResult, run, "paired result") for run in answer["runs"])
        for run in runs:
            self._progress.say(
                "prove",
                f"{run.concurrency} at a time: {run.engine_tokens_per_s:.1f} -> {run.kernels_tokens_per_s:.1f} "
                f"tokens/s, {run.ratio:.2f}x ({run.ratio_low:.2f} to {run.ratio_high:.2f})",
            )
        decision = decide_release(runs)
        if decision.promote:
            decision = self._release(decision)
        if not decision.promote:
            self._progress.say("prove", f"not released to stable: {decision.reason}")
        return runs, decision

    def _release(self, decision: Decision) -> Decision:
        """Moves canary to stable, unless the approval policy leaves that to a person."""
        try:
            published = steps.run("release", lambda step: release_steps(self._settings, step))
        except ApprovalError as error:
            return Decision(False, str(error))
        self._progress.say("prove", f"released to {published.channel}: {decision.reason}")
        return decision

    def _drill(self, process: ServingProcess) -> None:
        """Back to no kernels, and forth again, while the process serves."""
        settings, channel = self._settings, self._demo.channel
        began = time.monotonic()
        back = steps.run("rollback", lambda step: rollback_steps(settings, channel, 0, step))
        self._await_swap(process, back.number, began, "rollback to swap")
        began = time.monotonic()
        forth = steps.run("rollback", lambda step: rollback_steps(settings, channel, self._state.generation, step))
        self._await_swap(process, forth.number, began, "forward to swap")

    def _await_swap(self, process: ServingProcess, generation: int, since_s: float, name: str) -> None:
        """Serves requests until the host has swapped to a generation.

        Raises:
            ServingError: it did not follow in time.
        """
        width = max(self._demo.concurrency)
        deadline_s = time.monotonic() + SWAP_TIMEOUT_S
        while process.status()["generation"] != generation:
            if time.monotonic() > deadline_s:
                raise ServingError(
                    f"serving process: does not run generation {generation} after {SWAP_TIMEOUT_S:.0f} s; its "
                    "refusals are told above, its log is serving.log"
                )
            process.replay(self._requests[:width], width, self._state.seed)
        self._latencies_s[name] = self._swapped_s.get(generation, time.monotonic()) - since_s

    def _on_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind in ("swap", "rollback"):
            self._swapped_s[event["generation"]] = time.monotonic()
            self._progress.say(kind, f"the process swapped to generation {event['generation']} between two steps")
        elif kind in ("refusal", "poll_failed"):
            self._progress.say(kind, str(event.get("reason", event)))
        elif kind == "progress" and "pair" in event:
            self._progress.say("prove", f"{event['concurrency']} at a time: pair {event['pair']} of {event['of']}")
        elif kind == "progress":
            self._progress.say("serve", f"{event['done']} of {event['of']} requests, {event['steps']} decode steps")

    def _advance(self, **done: Any) -> None:
        self._state = replace(self._state, **done)
        demo_state.keep(self._folder, self._state)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._phases_s[name] = time.monotonic() - began


def serving_flags(settings: Settings, demo: DemoSettings, opened: OpenStore) -> list[str]:
    """How a serving process of this fleet is started; credentials go in its environment."""
    flags = {
        "store": opened.url,
        "fleet": settings.fleet,
        "model": settings.model,
        "channel": demo.channel,
        "root-file": str(settings.keys_dir / "root.json"),
        "cache-dir": str(settings.home / "host"),
        "dtype": demo.dtype,
    }
    return [f"--{name}={value}" for name, value in flags.items()]


def read_requests(demo: DemoSettings, seed: int) -> tuple[str, tuple[Request, ...]]:
    """The requests to replay and where they come from.

    Raises:
        TraceError: the trace cannot be read.
    """
    path = demo.trace or (SHARED_TRACE if SHARED_TRACE.exists() else None)
    if path is None:
        name, requests = (
            "drawn from quantiles of the Azure code trace (CC-BY 4.0)",
            quantile_requests(seed, demo.requests),
        )
    else:
        name, requests = path.name, read_trace(path)[: demo.requests]
    return name, scale(requests, demo.prompt_factor, demo.max_prompt, demo.max_generated)
