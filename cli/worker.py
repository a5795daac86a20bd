"""`./mill worker`: joins a Prefect server and works off what is deployed for this machine's hardware, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os

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
    _check_answers(server)
    key_relay.offer(os.environ)
    settings, watch = from_environment(), Watch()
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(object_store.opened(settings))
        env = {**local_server.prefect_environment(settings.home, server), **deployment.variables(settings, opened)}
        if not arguments.no_deploy:
            watch.say("worker", f"deploying for {settings.hardware}")
            deployment.deploy(settings, env)
        workers = []
        for pool, limit in deployment.limits(settings).items():
            if pool != deployment.POOL or not arguments.device_only:
                workers.append(stack.enter_context(local_server.prefect_worker(settings.home, env, pool, limit)))
                print(f"worker    of the pool {pool}", flush=True)
        print("Ctrl-C ends it", flush=True)
        local_server.watch(workers)


def _check_answers(server: str) -> None:
    """A worker would look for a server that is not there for ever, and say nothing."""
    import http.client
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{server.rstrip('/')}/health", timeout=10):
            return
    except urllib.error.HTTPError:
        return  # it answers; some ask for a key first
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise WorkerArgumentsError(
            f"PREFECT_API_URL is {server!r}: no server answers there ({getattr(error, 'reason', error)}); name one as "
            "http://HOST:PORT/api; ./mill ui starts one"
        ) from None
