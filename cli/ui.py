"""`./mill ui`: the MLflow and Prefect pages, deployments registered and a worker that runs them, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os

from cli import amount
from cli.watch import Watch
from tasks.settings import from_environment


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefect-port", type=amount.port, default=4200, help="of the Prefect server, on loopback")
    parser.add_argument("--mlflow-port", type=amount.port, default=5000, help="of the MLflow server, on loopback")
    parser.add_argument("--no-worker", action="store_true", help="show, but run no scheduled deployment")


def run(arguments: argparse.Namespace) -> int:
    from agents.models import key_relay
    from cli.errors import UiArgumentsError
    from tasks import deployment, local_server, mlflow_sink, mlflow_store, object_store

    if arguments.prefect_port == arguments.mlflow_port:
        raise UiArgumentsError(f"mill ui: MLflow and Prefect cannot share port {arguments.mlflow_port}; name two")
    key_relay.offer(os.environ)  # to the searches of the worker
    settings, watch, database = from_environment(), Watch(), deployment.database_url()
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(object_store.opened(settings))
        watch.say("ui", "starting MLflow and Prefect on loopback")
        waiting = mlflow_sink.send_leftovers(settings.home, settings.tracking_uri)
        if waiting:
            watch.say("ui", f"{waiting} searches could not be sent to MLflow yet")
        uri = mlflow_store.store_uri(settings.home, settings.tracking_uri)
        mlflow = stack.enter_context(
            local_server.mlflow_server(
                settings.home, uri, mlflow_store.artifact_root(settings.home), arguments.mlflow_port
            )
        )
        prefect, env = local_server.prefect_server(settings.home, arguments.prefect_port, database)
        stack.enter_context(prefect)
        prefect.wait_ready(timeout_s=180)
        mlflow.wait_ready(timeout_s=180)
        env = {**env, **deployment.variables(settings, opened)}
        servers = [mlflow, prefect]
        if not arguments.no_worker:
            deployment.deploy(settings, env)
            for pool, limit in deployment.limits(settings).items():
                servers.append(stack.enter_context(local_server.prefect_worker(settings.home, env, pool, limit)))
        print(f"MLflow    http://{local_server.LOOPBACK}:{arguments.mlflow_port}")
        print(f"Prefect   http://{local_server.LOOPBACK}:{arguments.prefect_port}")
        print(f"commands  in another terminal join it with: export PREFECT_API_URL={env['PREFECT_API_URL']}")
        print("Ctrl-C ends all of it", flush=True)
        local_server.watch(servers)
