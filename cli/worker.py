"""`./mill worker`: joins a Prefect server and works off what is deployed for this machine's hardware, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal

from cli.errors import WorkerArgumentsError
from cli.watch import Watch
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device-only", action="store_true", help="run what measures, and leave the rest to others")
    parser.add_argument("--no-deploy", action="store_true", help="take the deployments as the server has them")


def run(arguments: argparse.Namespace) -> int:
    from agents.models import key_relay
    from tasks import deployment, local_server, object_store

    server = os.environ.get("PREFECT_API_URL", "")
    if not server:
        raise WorkerArgumentsError(
            "PREFECT_API_URL is not set: name the server to join, http://HOST:PORT/api; ./mill ui starts one"
        )
    key_relay.offer(os.environ)
    settings, watch = from_environment(), Watch()
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(object_store.opened(settings))
        env = {**local_server.prefect_environment(settings.home, server), **deployment.variables(settings, opened)}
        if not arguments.no_deploy:
            watch.say("worker", f"deploying for {settings.hardware}")
            deployment.deploy(settings, env)
        for pool, limit in deployment.limits(settings).items():
            if pool != deployment.POOL or not arguments.device_only:
                stack.enter_context(local_server.prefect_worker(settings.home, env, pool, limit))
                print(f"worker    of the pool {pool}", flush=True)
        print("Ctrl-C ends it", flush=True)
        signal.pause()
    return 0
