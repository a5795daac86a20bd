"""The pools of a machine, and the address of a database: what is none is refused without telling its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.deployment import DATABASE_VARIABLE, POOL, database_url, device_pool, limits
from tasks.errors import SettingsError
from tests.tasks.world import HARDWARE, settings


def test_what_measures_waits_for_nothing_and_runs_alone(tmp_path: Path) -> None:
    found = limits(settings(tmp_path))
    assert found[device_pool(HARDWARE)] == 1 and found[POOL] > 1 and len(found) == 2


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
def test_a_database_is_used_with_the_driver_that_prefect_needs(scheme: str) -> None:
    url = database_url({DATABASE_VARIABLE: f"{scheme}://mill:p%40ss@db.local:5433/prefect?ssl=require"})
    assert url == "postgresql+asyncpg://mill:p%40ss@db.local:5433/prefect?ssl=require"


def test_a_socket_is_an_address_too_and_none_is_sqlite() -> None:
    assert database_url({}) == database_url({DATABASE_VARIABLE: ""}) == ""
    assert database_url({DATABASE_VARIABLE: "postgresql://u@/mill?host=/run/postgresql"}).startswith(
        "postgresql+asyncpg"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "sqlite:///x.db",
        "mysql://u:secret@h/d",
        "postgresql://u:secret@h",
        "postgresql://u:secret@/d",
        "postgresql://u:secret@h:port/d",
        "postgresql://u:secret@h:0/d",
        "postgresql://u:secret@[::1/d",
        "postgresql://u:secret@h/a/b",
        "db.local",
    ],
)
def test_what_is_no_postgresql_is_one_line_without_its_password(wrong: str) -> None:
    with pytest.raises(SettingsError) as refused:
        database_url({DATABASE_VARIABLE: wrong})
    assert DATABASE_VARIABLE in str(refused.value) and "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)
