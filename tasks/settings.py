"""Where the pipeline keeps its state, and which fleet it works for: from the environment, once, at the edge."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import StoreAddressError
from gristmill.hardware import local_cpu
from gristmill.store import checked_key
from tasks.errors import SettingsError

REPOSITORY = Path(__file__).resolve().parent.parent
POLICY, PERSON = "policy", "person"
TASK_RUNNER = re.compile(r"dask=([1-9]\d{0,2}|(tcp|tls)://[\w.\[\]:-]+:\d{1,5})")


@dataclass(frozen=True)
class Settings:
    """Immutable; every task takes it, none reads the environment again (credentials excepted, which stay there)."""

    home: Path
    """State of this checkout (`MILL_HOME`, default `.mill`): keys, caches, spools, searches."""
    store_url: str
    """Object store (`MILL_STORE`), e.g. `s3://bucket?endpoint=...` or `file:///dir`; empty: the embedded one."""
    fleet: str
    """Name of the fleet (`MILL_FLEET`)."""
    model: str
    """Name of the model it serves (`MILL_MODEL`)."""
    hardware: str
    """Hardware key of this host."""
    tracking_uri: str
    """MLflow tracking server (`MLFLOW_TRACKING_URI`); empty: SQLite under `home`."""
    approval: str = POLICY
    """Who approves for stable (`MILL_APPROVAL`): `policy`, as far as the approver's key is here, or only a `person`."""
    task_runner: str = ""
    """What a flow's parts may be spread over (`MILL_TASK_RUNNER`): `dask=ADDRESS`, or `dask=N` for so many processes of
    this machine; empty: nothing.
    """

    @property
    def keys_dir(self) -> Path:
        return self.home / "keys"

    @property
    def judge_dir(self) -> Path:
        return self.home / "judge"

    @property
    def searches_dir(self) -> Path:
        return self.home / "searches"

    @property
    def peaks_path(self) -> Path:
        return self.home / "peaks.json"


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Reads the settings; the home directory is created (mode 0700: it holds keys).

    Raises:
        SettingsError: the home cannot be made, a name is none that channels can have, nobody may approve, or the task
            runner is not known.
    """
    return Settings(
        home=_made_home(Path(environ.get("MILL_HOME") or REPOSITORY / ".mill").resolve()),
        store_url=environ.get("MILL_STORE", ""),
        fleet=_name(environ, "MILL_FLEET", "demo"),
        model=_name(environ, "MILL_MODEL", "llama-8x1024"),
        hardware=local_cpu().key,
        tracking_uri=environ.get("MLFLOW_TRACKING_URI", ""),
        approval=_approval(environ),
        task_runner=_task_runner(environ),
    )


def _made_home(home: Path) -> Path:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"MILL_HOME {home}: {error.strerror}; name a folder that this user can write") from None
    return home


def _approval(environ: Mapping[str, str]) -> str:
    chosen = environ.get("MILL_APPROVAL") or POLICY
    if chosen not in (POLICY, PERSON):
        raise SettingsError(f"MILL_APPROVAL is {chosen!r}: expected {POLICY} or {PERSON}")
    return chosen


def _task_runner(environ: Mapping[str, str]) -> str:
    chosen = environ.get("MILL_TASK_RUNNER", "").strip()
    if not chosen or TASK_RUNNER.fullmatch(chosen):
        return chosen
    raise SettingsError(
        f"MILL_TASK_RUNNER is {chosen!r}: expected dask=ADDRESS of a scheduler, such as dask=tcp://127.0.0.1:8786, or "
        "dask=N for so many processes of this machine"
    )


def _name(environ: Mapping[str, str], variable: str, default: str) -> str:
    """Part of store keys and of channels, so that it must be one that a key can have."""
    name = environ.get(variable) or default
    try:
        if "/" not in checked_key(name):
            return name
    except StoreAddressError:
        pass
    raise SettingsError(f"{variable} is {name!r}: expected one word of letters, digits and _=+@,.-")
