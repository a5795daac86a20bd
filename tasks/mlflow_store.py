"""Where MLflow keeps runs: SQLite and a folder under the home, or any tracking server."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

SETTINGS = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Quiet, and fast to give up: the spool retries better than a blocked request does. The caller's own values win."""


def store_uri(home: Path, tracking_uri: str = "") -> str:
    """`tracking_uri`, else `MLFLOW_TRACKING_URI`, else SQLite under the home."""
    return tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "") or f"sqlite:///{home.resolve() / 'mlflow.db'}"


def artifact_root(home: Path) -> str:
    """Where artifacts lie that belong to the SQLite store; a server has a place of its own."""
    return (home.resolve() / "mlflow-artifacts").as_uri()


def open_store(home: Path, tracking_uri: str = "") -> MlflowClient:
    """A client of the store. A SQLite schema is made here, by one process at a time (a few seconds, once)."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for chatty in ("alembic", "mlflow"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it tells of each retry
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs the trace of what it raises
    uri = store_uri(home, tracking_uri)
    if not is_local(uri):
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    home.mkdir(parents=True, exist_ok=True)
    with (home / "mlflow.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    return client


def is_local(uri: str) -> bool:
    """Whether the store is a SQLite file, whose artifacts we place ourselves."""
    return uri.startswith("sqlite:")


def ensure_experiment(client: MlflowClient, home: Path, name: str, *, local: bool) -> str:
    """The id of an experiment, made if it is missing. `local` stores keep artifacts under the home."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifact_root(home) if local else None))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another process was first
            if found is None:
                raise
    return str(found.experiment_id)
