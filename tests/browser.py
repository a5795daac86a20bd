"""A real browser without a screen: Qt's Chromium, from whichever of its Python wheels is installed.

    pip install PySide6     # or PyQt6-WebEngine; the tests that need it are skipped without

`python tests/browser.py URL [WAIT_MS]` loads a page and prints one JSON object: what the page holds and what its
console said. A process of its own, because Qt wants the main thread.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BINDINGS = ("PySide6", "PyQt6")
TIMEOUT_S = 120
WINDOW = (1200, 900)
FOUND = """JSON.stringify({
  title: document.title,
  text: document.body.innerText,
  pictures: [...document.querySelectorAll('figure svg, img')].map(picture => {
    const box = picture.getBoundingClientRect();
    const marks = picture.tagName === 'IMG' ? picture.naturalWidth : picture.querySelectorAll('path, use, text').length;
    return [Math.round(box.width), Math.round(box.height), marks];
  })
})"""


@dataclass(frozen=True)
class Looked:
    """A page as the browser has laid it out."""

    title: str
    text: str
    pictures: tuple[tuple[int, int, int], ...]
    """Width and height in pixels, and marks that an SVG draws or natural width that an image has."""
    errors: tuple[str, ...]
    """Of the console."""


def binding() -> str | None:
    """The package that carries a browser, if one is installed."""
    return next((name for name in BINDINGS if _has_browser(name)), None)


def _has_browser(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"{name}.QtWebEngineCore") is not None
    except ModuleNotFoundError:
        return False


def look(url: str, wait_ms: int = 300) -> Looked:
    """Loads the page, waits for its scripts, and says what is there.

    Raises:
        RuntimeError: the browser did not come up, or the page did not load.
    """
    quiet = {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_DISABLE_SANDBOX": "1"}
    environment = {**os.environ, **quiet, "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), url, str(wait_ms)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{url} did not load: {done.stderr[-500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    pictures = tuple((width, height, marks) for width, height, marks in found["pictures"])
    return Looked(found["title"], found["text"], pictures, tuple(found["errors"]))


def _main(url: str, wait_ms: int) -> int:
    name = binding()
    core: Any = importlib.import_module(f"{name}.QtCore")
    widgets: Any = importlib.import_module(f"{name}.QtWidgets")
    engine: Any = importlib.import_module(f"{name}.QtWebEngineCore")
    views: Any = importlib.import_module(f"{name}.QtWebEngineWidgets")
    application = widgets.QApplication(sys.argv[:1])
    errors: list[str] = []
    answers: list[str] = []

    class Page(engine.QWebEnginePage):  # type: ignore[misc,name-defined]
        def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:  # noqa: N802
            if level.name == "ErrorMessageLevel":
                errors.append(f"{source}:{line}: {message}")

    view = views.QWebEngineView()
    page = Page(view)
    view.setPage(page)
    view.resize(*WINDOW)
    view.show()

    def ask(loaded: bool) -> None:
        if not loaded:
            application.exit(1)
        core.QTimer.singleShot(wait_ms, lambda: page.runJavaScript(FOUND, tell))

    def tell(answer: str) -> None:
        answers.append(answer)
        application.exit(0)

    page.loadFinished.connect(ask)
    page.load(core.QUrl(url))
    code = int(application.exec())
    if answers:
        print(json.dumps({**json.loads(answers[0]), "errors": errors}), flush=True)
    os._exit(code)  # Qt's own end of a page without a profile warns and may hang


if __name__ == "__main__":
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent.resolve()]
    _main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 300)
