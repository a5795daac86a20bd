"""Settings come from the environment, once."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gristmill.hardware import local_cpu
from tasks.errors import SettingsError
from tasks.settings import REPOSITORY, from_environment


def test_defaults_are_a_private_home_and_the_embedded_store(tmp_path: Path) -> None:
    found = from_environment({"MILL_HOME": str(tmp_path / "new" / "home")})
    assert stat.S_IMODE(found.home.stat().st_mode) == 0o700
    assert (found.store_url, found.fleet, found.hardware, found.tracking_uri) == ("", "demo", local_cpu().key, "")


def test_variables_are_taken_and_empty_ones_are_not(tmp_path: Path) -> None:
    found = from_environment(
        {
            "MILL_HOME": str(tmp_path),
            "MILL_STORE": "file:///store",
            "MILL_FLEET": "chat",
            "MILL_MODEL": "",
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:5000",
        }
    )
    assert (found.store_url, found.fleet, found.model) == ("file:///store", "chat", "llama-8x1024")
    assert found.tracking_uri == "http://127.0.0.1:5000"
    assert found.keys_dir.parent == found.judge_dir.parent == found.searches_dir.parent == tmp_path
    assert (REPOSITORY / "prefect.yaml").exists()


@pytest.mark.parametrize("name", ["a/b", "two words", "..", "ü", "a*"])
@pytest.mark.parametrize("variable", ["MILL_FLEET", "MILL_MODEL"])
def test_a_name_that_no_channel_can_have_is_refused_at_once(tmp_path: Path, variable: str, name: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        from_environment({"MILL_HOME": str(tmp_path), variable: name})


def test_a_home_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"MILL_HOME.*name a folder"):
        from_environment({"MILL_HOME": str(tmp_path / "file" / "home")})
    with pytest.raises(SettingsError, match="MILL_HOME"):
        from_environment({"MILL_HOME": str(tmp_path / "file")})


def test_who_approves_is_a_policy_or_a_person(tmp_path: Path) -> None:
    home = {"MILL_HOME": str(tmp_path)}
    assert from_environment(home).approval == "policy"
    assert from_environment({**home, "MILL_APPROVAL": "person"}).approval == "person"
    with pytest.raises(SettingsError, match=r"MILL_APPROVAL is 'nobody': expected policy or person"):
        from_environment({**home, "MILL_APPROVAL": "nobody"})
