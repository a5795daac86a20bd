"""A home whose MLflow schema is there, and figures that take no time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MEMORY


@pytest.fixture
def home(template_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        shutil.copy(template_home / "mlflow.db", folder)
        yield Path(folder)


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time where a search is sent dozens of times."""
    from matplotlib.figure import Figure

    from tasks import mlflow_runs, search_charts, swarm_charts

    for module, name in (
        (mlflow_runs, "best_ratio_figure"),
        (search_charts, "fates"),
        (search_charts, "heat_map"),
        (search_charts, "time_shares"),
        (search_charts, "pareto"),
        (swarm_charts, "cost_figure"),
        (swarm_charts, "timeline_figure"),
    ):
        monkeypatch.setattr(module, name, lambda found: Figure((1, 1)))
