"""Pictures hold what they were given: marks where there is something, and never one colour."""

from __future__ import annotations

import io

import numpy
import pytest
from matplotlib.figure import Figure
from PIL import Image

from kernels.verdict import Status
from tasks import mlflow_runs, search_charts
from tasks.mlflow_spool import SearchTrial
from tasks.report_data import FateRow, HeatRow, ParetoRow, TimeShareRow
from tests.tasks.world import candidate, rms_norm, timing, verdict

FIGURES = {
    "heat": search_charts.heat_map([HeatRow("rms_norm", 1, 0.25), HeatRow("softmax", 64, 0.75)]),
    "shares": search_charts.time_shares([TimeShareRow("rms_norm", "float32", 0.7, 0.2)]),
    "fates": search_charts.fates([FateRow("rows", {status.value: 1 for status in Status})]),
    "pareto": search_charts.pareto([ParetoRow("rms_norm", "float32", "abc", ((1, 2.0),), True)] * 4),
}


def _pixels(figure: Figure) -> numpy.ndarray:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=80)
    image = Image.open(content)
    width, height = figure.get_size_inches() * 80
    assert image.size == (pytest.approx(width, abs=1), pytest.approx(height, abs=1))
    return numpy.asarray(image.convert("RGB"))


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_is_of_the_size_it_says_and_not_uniform(name: str) -> None:
    pixels = _pixels(FIGURES[name])
    drawn = (pixels != pixels[0, 0]).any(-1)
    assert 0.005 < drawn.mean() < 0.9
    assert len(numpy.unique(pixels.reshape(-1, 3), axis=0)) > 8


def test_a_heat_map_writes_shares_into_its_cells() -> None:
    texts = [text.get_text() for text in FIGURES["heat"].axes[0].texts]
    assert texts == ["25.0", "75.0"]
    assert [label.get_text() for label in FIGURES["heat"].axes[0].get_xticklabels()] == ["1", "64 to 127"]


def test_every_status_has_its_colour_and_its_bar() -> None:
    axes = FIGURES["fates"].axes[0]
    assert set(search_charts.FATES) == set(Status)
    assert len(axes.patches) == len(Status)
    assert max(patch.get_x() + patch.get_width() for patch in axes.patches) == len(Status)


def test_what_is_left_is_said() -> None:
    assert "20.0 are left of 100" in FIGURES["shares"].axes[0].get_xlabel()


def test_a_search_without_timed_candidates_has_the_one_picture_that_tells_why() -> None:
    failed = candidate(1)
    assert set(mlflow_runs.pictures([SearchTrial(0, 0, failed, verdict(failed))])) == {"fates.png"}


def test_a_search_with_timed_candidates_has_all() -> None:
    made = candidate(1)
    trial = SearchTrial(0, 0, made, verdict(made, timing(rms_norm(4), 2.0)))
    assert set(mlflow_runs.pictures([trial])) == {"fates.png", "traffic.png", "time_share.png", "pareto.png"}
