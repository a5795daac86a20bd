"""The whole turn on vLLM: what its worker samples is compiled for, proven, and judged by an A/B over several starts.

The phases up to the promotion are those of the demo on the reference engine. The state of an engine can't be taken back
a step, so the proof compares replays, and starts the engine again for the second half of them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flows import demo_state, steps
from flows.capture import Captured
from flows.demo import Demo, DemoProgress, DemoSettings, serving_flags
from gristmill.kernel_table import Artifact
from gristmill.kill_switch import FILE_VARIABLE
from gristmill.traces import Request
from registry.promotion import Decision
from tasks import mlflow_mirror, object_store
from tasks.compilation import SearchResult
from tasks.engine_gate import decide_engine_release
from tasks.engine_site import serving_site, vllm_python
from tasks.engine_trial import Start, Trial, TrialSettings, run_start
from tasks.errors import NoWinnerError
from tasks.object_store import OpenStore
from tasks.serving_client import Event, ServingProcess
from tasks.settings import Settings

START_TIMEOUT_S = 240.0
"""vLLM loads for half a minute on an idle machine, and longer on a busy one."""


@dataclass(frozen=True)
class VllmDemoSettings(DemoSettings):
    """As the reference demo's; a trial replays the first requests only."""

    dtype: str = "bfloat16"
    pairs: int = 6
    starts: int = 2
    trial_requests: int = 16

    @property
    def options(self) -> list[object]:
        return [*super().options, "vllm"]


@dataclass
class VllmDemoResult:
    """Everything that is told at the end. `decision` says why, also where nothing was promoted at all."""

    trace: str
    requests: tuple[Request, ...]
    captured: Captured
    search: SearchResult
    artifacts: tuple[Artifact, ...]
    trial: Trial
    decision: Decision
    status: Event
    latencies_s: dict[str, float] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)


class VllmDemo(Demo):
    """Runs the phases in order, as `Demo` does."""

    def __init__(
        self,
        settings: Settings,
        demo: VllmDemoSettings,
        progress: DemoProgress,
        *,
        fresh: bool,
        before_flows: Callable[[], None] = lambda: None,
    ) -> None:
        """`settings` are the checkout's; the engine's traffic and tables go under a model name of their own."""
        self._python = vllm_python()
        self._starts = demo.starts
        self._trial_requests = demo.trial_requests
        own = replace(settings, model=f"{settings.model}-vllm")
        super().__init__(own, demo, progress, fresh=fresh, before_flows=before_flows, name="demo-vllm")
        self._kill_file = self._folder / "kill"
        self._proving = False
        self._cores = engine_cores(os.sched_getaffinity(0))

    def turn(self) -> VllmDemoResult:
        """The whole turn.

        Raises:
            GristmillError: with what stopped it; running it again goes on from there.
        """
        settings = self._settings
        with object_store.opened(settings) as opened:
            self._prepare_registry(opened)
            with self._serving(opened) as process:
                with self._phase("serve"):
                    process.wait_ready(START_TIMEOUT_S)
                    self._serve(process)
                status = process.status()
                with self._phase("capture"):
                    self._before_flows()
                    captured = self._capture()
                try:
                    with on_cores(self._cores):
                        with self._phase("search"):
                            search = self._compile()
                        with self._phase("promote"):
                            artifacts = self._promote(process)
                except NoWinnerError as error:
                    demo_state.end(self._folder)
                    self._progress.say("promote", f"nothing to promote: {error}")
                    return self._result(captured, search, (), Trial((), self._state.seed), str(error), status)
                self._proving = True
                with self._phase("prove"):
                    first = run_start(process, self._measured, self._trial, 0, self._tell)
                with self._phase("roll back"):
                    self._drill(process)
                status = process.status()
            with self._phase("prove again"):
                trial = Trial((first, *self._more_starts(opened, status["generation"])), self._state.seed)
            decision = self._decided(trial, artifacts)
            steps.run("mirror", lambda step: step(mlflow_mirror.keep_mirror)(settings))
        demo_state.end(self._folder)
        result = self._result(captured, search, artifacts, trial, decision.reason, status)
        return replace(result, decision=decision)

    def _more_starts(self, opened: OpenStore, generation: int) -> Iterator[Start]:
        """Each measured once it serves what the first one did."""
        for number in range(1, self._starts):
            with self._serving(opened) as process:
                process.wait_ready(START_TIMEOUT_S)
                self._await_swap(process, generation, time.monotonic(), "start to swap")
                yield run_start(process, self._measured, self._trial, number, self._tell)

    def _decided(self, trial: Trial, artifacts: tuple[Artifact, ...]) -> Decision:
        decision = decide_engine_release(trial, artifacts)
        if decision.promote:
            decision = self._release(decision)
        if not decision.promote:
            self._progress.say("prove", f"not released to stable: {decision.reason}")
        return decision

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if not (self._proving and event["event"] == "progress"):  # pairs are told instead
            super()._on_event(event)

    def _tell(self, text: str) -> None:
        self._progress.say("prove", text)

    @property
    def _measured(self) -> tuple[Request, ...]:
        return self._requests[: self._trial_requests]

    @property
    def _trial(self) -> TrialSettings:
        return TrialSettings(self._demo.concurrency, self._demo.pairs, self._state.seed, self._kill_file)

    @contextlib.contextmanager
    def _serving(self, opened: OpenStore) -> Iterator[ServingProcess]:
        self._progress.say("serve", f"starting vLLM: 8-layer Llama, {self._demo.dtype}, dummy weights")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._kill_file.write_text("")
        site = serving_site(self._settings.home / "vllm-site")
        environ = {
            **opened.environ,
            "PYTHONPATH": str(site),
            "PYTHONSAFEPATH": "1",
            FILE_VARIABLE: str(self._kill_file),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, self._cores)),
        }
        flags = [
            *serving_flags(self._settings, self._demo, opened),
            "--spool-s=10",
            f"--cache-dir={self._settings.home / 'host-vllm'}",
        ]
        command = [str(self._python), "-m", "gristmill.serving.vllm_engine"]
        log = self._settings.home / "logs" / "vllm.log"
        with ServingProcess(flags, environ, log, self._on_event, command, site) as process:
            yield process

    def _result(
        self,
        captured: Captured,
        search: SearchResult,
        artifacts: tuple[Artifact, ...],
        trial: Trial,
        reason: str,
        status: Event,
    ) -> VllmDemoResult:
        return VllmDemoResult(
            self.trace_name,
            self._requests,
            captured,
            search,
            artifacts,
            trial,
            Decision(False, reason),
            status,
            self._latencies_s,
            self._phases_s,
        )


def engine_cores(usable: Iterable[int]) -> tuple[int, ...]:
    """What the engine's operators run on: all but one, which is left to its other processes, as by its own default."""
    cores = sorted(usable)
    return tuple(cores[: max(1, len(cores) - 1)])


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What this thread starts meanwhile runs there: kernels are to be proven with as many threads as the engine has."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
