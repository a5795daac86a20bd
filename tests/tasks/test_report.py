"""The report stands alone, shows what it was given, and cannot be broken by what it was given."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gristmill import records
from tasks.report import render
from tasks.report_data import (
    ConcurrencyRow,
    DecisionRow,
    DemoReport,
    FateRow,
    HeatRow,
    KernelRow,
    LeaderRow,
    OperatorTimeRow,
    ParetoRow,
    SearchRow,
    TimeShareRow,
    TrafficRow,
)

FULL = DemoReport(
    title="One turn",
    created_utc="2026-12-01T21:30:00Z",
    host="A CPU, 2 cores",
    facts={"trace": "code, 8,819 requests"},
    traffic=(TrafficRow("rms_norm", "float32", 12_345, 0.25, 4.0, 0.1875),),
    searches=(
        SearchRow("rms_norm", "float32", 30.0, (None, 0.9, 2.5), 1, 1.92),
        SearchRow("softmax", "float32", 5.0, (None,), 0),
    ),
    leaders=(LeaderRow("rms_norm", "float32", "vector rows", "unroll=4", 2.5, 2.4, "3f2a9c01d4e7aaaa"),),
    kernels=(KernelRow("rms_norm", "float32", "tokens 1 to 64", 2.5, 2.4, "3f2a9c01d4e7aaaa", 4321),),
    heat=(HeatRow("rms_norm float32 hidden=1024", 64, 0.75), HeatRow("rms_norm float32 hidden=1024", 1, 0.25)),
    time_shares=(TimeShareRow("rms_norm", "float32", 1.0, 0.4),),
    fates=(FateRow("rms_norm: rows", {"faster": 1, "crashed": 2}),),
    pareto=(ParetoRow("rms_norm", "float32", "3f2a9c01d4e7", ((1, 2.0), (64, 1.1)), True),),
    decisions=(DecisionRow("rms_norm.float32", "stays out", "the interval holds 1.0", 2, 0.98),),
    concurrency=(ConcurrencyRow(4, 88.1, 142.7, 1.62, 1.57, 1.68, 12),),
    operator_times=(OperatorTimeRow("rms_norm", 610.0, 90.0), OperatorTimeRow("softmax", 0.0, 0.0)),
    tokens_equal=True,
    token_comparison="All 4,096 tokens are the same.",
    latencies_ms={"swap": 212.4},
    phases_s={"search": 102.0, "promote": 41.5},
    commands={"Undo it": "./mill rollback"},
)
EMPTY = DemoReport("Nothing yet", "2026-12-01T21:30:00Z", "A CPU, 2 cores", {})
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Text, tags and balance of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def test_it_shows_what_it_was_given() -> None:
    page = Page(_full())
    for shown in ["1.62x", "1.57 to 1.68", "142.7", "18.8 %", "12,345", "4,321", "2.50x", "unroll=4", "3f2a9c01d4e7"]:
        assert shown in page.text, shown
    for shown in [
        "same",
        "All 4,096 tokens are the same.",
        "212.4",
        "143.5",
        "./mill rollback",
        "A CPU, 2 cores",
        "stays out",
    ]:
        assert shown in page.text, shown
    assert page.tags.count("svg") == 9


@functools.cache
def _full() -> str:
    """Drawing the pictures takes most of the time."""
    return render(FULL)


def test_it_needs_nothing_but_itself() -> None:
    html = _full()
    page = Page(html)
    assert all(link.startswith("#") for link in page.links)
    assert {"script", "link", "img", "iframe"} & set(page.tags) == set()
    assert re.findall(r"url\((?!#)|@import", html) == []


def test_a_report_without_results_is_still_a_page() -> None:
    page = Page(render(EMPTY))
    assert "Nothing yet" in page.text
    assert "svg" not in page.tags and "table" not in page.tags


def test_the_same_report_gives_the_same_page() -> None:
    assert render(FULL) == _full()


def test_different_tokens_are_said_so() -> None:
    page = Page(render(replace(FULL, tokens_equal=False)))
    assert "different" in page.text


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "a & b", '"quoted"', "$x_1$ costs $2", r"$\frac{1}{0}$ $\x$", "</svg><b>"]
)
def test_text_is_shown_and_never_obeyed(text: str) -> None:
    report = replace(
        FULL,
        title=text,
        facts={text: text},
        traffic=(TrafficRow(text, "float32", 1, 0.5, 2.0, 0.25),),
        searches=(SearchRow(text, "float32", 1.0, (2.0,), 1),),
        operator_times=(OperatorTimeRow(text, 2.0, 1.0),),
        heat=(HeatRow(text, 64, 1.0),),
        time_shares=(TimeShareRow(text, "float32", 1.0, 0.4),),
        fates=(FateRow(text, {"faster": 1}),),
        pareto=(ParetoRow(text, "float32", text, ((1, 2.0), (64, 1.1)), True),),
        decisions=(DecisionRow(text, text, text, 2, 0.98),),
        kernels=(KernelRow(text, "float32", text, 2.0, 1.9, text, 1),),
        leaders=(LeaderRow(text, "float32", text, text, 2.0, 1.9, text),),
        commands={text: text},
    )
    page = Page(render(report))
    assert "script" not in page.tags
    assert page.text.count(text) >= 8


def test_a_report_survives_its_codec() -> None:
    assert records.decode(DemoReport, records.encode(FULL)) == FULL
