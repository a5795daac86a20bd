"""`./mill demo`: the mill turns once, from real traffic to proven kernels in a live process."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from cli import amount, interrupt
from cli.memory import MemoryPeak
from cli.watch import Watch
from tasks.settings import Settings, from_environment

if TYPE_CHECKING:
    from flows.demo import Demo

PREFECT_TIMEOUT_S = 180.0
T = TypeVar("T")


def configure(parser: argparse.ArgumentParser) -> None:
    """What is not given stays as `flows.demo.DemoSettings` has it."""
    own = argparse.SUPPRESS
    parser.add_argument(
        "--trace", type=Path, default=own, help="Azure CSV or Mooncake JSONL to replay (default: the Azure code trace)"
    )
    parser.add_argument("--budget-s", type=amount.positive, default=own, help="seconds of search in all")
    parser.add_argument("--requests", type=amount.count, default=own, help="requests replayed at each concurrency")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=own, help="of the served model")
    parser.add_argument(
        "--engine",
        choices=("transformers", "vllm"),
        default="transformers",
        help="what serves; vllm is installed in an environment of its own (.venv-vllm/, 3.4 GB, once)",
    )
    parser.add_argument("--fresh", action="store_true", help="begin anew instead of resuming an interrupted demo")
    parser.add_argument(
        "--no-prefect", action="store_true", help="run the flows as plain Python, without a Prefect server"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    settings, watch = from_environment(), Watch()
    watch.say("demo", "loading")
    with MemoryPeak() as memory, contextlib.ExitStack() as stack:
        wait = [_start_mlflow(settings, watch)]
        if not arguments.no_prefect and not os.environ.get("PREFECT_API_URL"):
            wait.append(_start_prefect(settings, stack))

        def wait_for_servers() -> None:
            for ready in wait:
                ready()

        demo, turn, tell = _begun(arguments, settings, watch, wait_for_servers)
        watch.say(
            "demo", ("goes on where it was interrupted" if demo.resumed else "begins") + f"; trace: {demo.trace_name}"
        )
        try:
            result = turn()
        except KeyboardInterrupt:
            interrupt.acknowledge()
            raise KeyboardInterrupt("./mill demo goes on from here, ./mill demo --fresh begins anew") from None
    from gristmill import durable_file, records
    from tasks.report import render

    report = tell.report_of(result, settings, watch.elapsed_s(), memory.peak_bytes)
    path = settings.home / "report.html"
    durable_file.write(path, render(report).encode())
    if arguments.json:
        print(json.dumps(records.encode(tell.facts(result, report) if arguments.engine == "vllm" else report)))
        return 0
    print(tell.summary(result, watch.elapsed_s(), memory.peak_bytes))
    print(f"\nreport    {path}")
    print("look      ./mill ui shows every candidate in MLflow and every flow in Prefect (both on loopback)")
    print("go on     ./mill serve follows the channel; ./mill rollback undoes the promotion; ./mill registry log tells")
    return 0


def _begun(
    arguments: argparse.Namespace, settings: Settings, watch: Watch, before_flows: Callable[[], None]
) -> tuple[Demo, Callable[[], Any], ModuleType]:
    """A demo on the engine that was asked for, how it is run, and the module that tells what came of it."""
    from flows.demo import Demo, DemoSettings

    if arguments.engine != "vllm":
        from cli import demo_report

        reference = Demo(
            settings, _settings_of(DemoSettings, arguments), watch, fresh=arguments.fresh, before_flows=before_flows
        )
        return reference, reference.run, demo_report
    from cli import demo_vllm_report
    from flows.demo_vllm import VllmDemo, VllmDemoSettings

    demo = VllmDemo(
        settings, _settings_of(VllmDemoSettings, arguments), watch, fresh=arguments.fresh, before_flows=before_flows
    )
    return demo, demo.turn, demo_vllm_report


def _settings_of(kind: type[T], arguments: argparse.Namespace) -> T:
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in vars(arguments).items() if name in names})


def _start_mlflow(settings: Settings, watch: Watch) -> Callable[[], None]:
    """Makes MLflow's schema while the model loads: it takes seconds that the search would miss. Returns what waits.

    A store that cannot be reached is told and no obstacle: the search's log keeps what it could not send.
    """
    from tasks import mlflow_store

    def make() -> None:
        try:
            mlflow_store.open_store(settings.home, settings.tracking_uri)
        except Exception as error:
            first = str(error).partition("\n")[0]
            watch.say("mlflow", f"not there yet ({type(error).__name__}: {first[:120]}); what it lacks is sent later")

    thread = threading.Thread(target=make, name="mlflow", daemon=True)
    thread.start()
    return thread.join


def _start_prefect(settings: Settings, stack: contextlib.ExitStack) -> Callable[[], None]:
    """Starts a Prefect server that ends with the stack; flows of this process talk to it. Returns what waits for it."""
    from tasks.local_server import free_port, prefect_server

    server, env = prefect_server(settings.home, free_port())
    stack.enter_context(server)
    os.environ.update(env)
    return functools.partial(server.wait_ready, timeout_s=PREFECT_TIMEOUT_S)
