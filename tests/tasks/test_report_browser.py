"""Pages as a browser lays them out: they load, their console is silent, their pictures are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.report import render
from tests import browser
from tests.tasks.test_report import FULL

pytestmark = pytest.mark.skipif(
    browser.binding() is None, reason="no browser: pip install PySide6 (or PyQt6-WebEngine) brings one"
)


def test_the_report_loads_in_a_browser_with_every_picture(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(FULL))
    looked = browser.look(page.as_uri())
    assert looked.errors == ()
    assert looked.title == FULL.title
    assert len(looked.pictures) == 9
    assert all(width > 300 and height > 60 and marks > 10 for width, height, marks in looked.pictures)
    assert "stays out" in looked.text
    assert "$" not in looked.text, "numbers on an axis that are written as formulas"


def test_an_error_in_the_console_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<html><body><script>missing()</script></body></html>")
    assert "missing is not defined" in " ".join(browser.look(page.as_uri()).errors)
