"""The report of one turn of the mill: one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gristmill import records
from tasks import report_charts as charts
from tasks import search_charts
from tasks.report_data import DemoReport

STYLE = """
:root { color-scheme: light; --ink: #1f2933; --muted: #66727f; --line: #e3e8ed; --good: #0b7a5b; --bad: #c2502e; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2.5rem 1.5rem 4rem; background: #fff; color: var(--ink);
  font: 15px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.12rem; margin: 2.6rem 0 .3rem; }
p { margin: .2rem 0 .8rem; max-width: 46rem; }
.muted, figcaption, h2 + p { color: var(--muted); }
.tiles { display: flex; flex-wrap: wrap; gap: .9rem; margin: 1.6rem 0 .6rem; }
.tile { flex: 1 1 11rem; border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.7rem; line-height: 1.25; font-weight: 650; }
.tile.good b { color: var(--good); } .tile.bad b { color: var(--bad); }
.tile span { color: var(--muted); font-size: .86rem; line-height: 1.35; display: block; }
figure { margin: .6rem 0 1rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
.scroll { overflow-x: auto; margin-bottom: .9rem; }
table { border-collapse: collapse; width: 100%; font-size: .89rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--muted); border-bottom: 1px solid var(--ink); }
th, td { padding: .32rem .9rem .32rem 0; vertical-align: top; }
td { border-bottom: 1px solid var(--line); }
.number { text-align: right; white-space: nowrap; }
code, pre { font: .86em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.4rem; margin: .6rem 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2 { break-after: avoid; } figure, .tile, tr { break-inside: avoid; }
}
"""


def render(report: DemoReport) -> str:
    """The whole page. The same report gives the same bytes."""
    body = "".join(
        [
            f"<h1>{escape(report.title)}</h1>",
            f'<p class="muted">{escape(report.host)}<br>{escape(report.created_utc)}</p>',
            _tiles(report),
            _proof(report),
            _traffic(report),
            _search(report),
            _decisions(report),
            _kernels(report),
            _turn(report),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _tiles(report: DemoReport) -> str:
    tiles = []
    if report.concurrency:
        best = max(report.concurrency, key=lambda row: row.ratio)
        where = f"decoded tokens per second at {best.concurrency} concurrent requests"
        interval = f"95 % interval {best.ratio_low:.2f} to {best.ratio_high:.2f}"
        tiles.append(_tile(f"{best.ratio:.2f}x", f"{where}; {interval}", "good" if best.ratio_low > 1 else ""))
    if report.kernels:
        hits = sum(row.hits for row in report.kernels)
        ranges = "promoted range" if len(report.kernels) == 1 else "promoted ranges"
        tiles.append(_tile(str(len(report.kernels)), f"{ranges}, {hits:,} calls served in the live process"))
    if report.searches:
        judged = sum(len(row.ratios) for row in report.searches)
        tiles.append(
            _tile(str(judged), f"candidates judged, {sum(row.faster for row in report.searches)} proven faster")
        )
    if report.tokens_equal is not None:
        word, kind = ("same", "good") if report.tokens_equal else ("different", "bad")
        tiles.append(_tile(word, "tokens with and without the promoted kernels, greedy decoding", kind))
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _tile(value: str, text: str, kind: str = "") -> str:
    return f'<div class="tile {kind}"><b>{escape(value)}</b><span>{escape(text)}</span></div>'


def _proof(report: DemoReport) -> str:
    parts = []
    if report.concurrency:
        rows = [
            (
                r.concurrency,
                f"{r.off_tokens_s:.1f}",
                f"{r.on_tokens_s:.1f}",
                _ratio(r.ratio),
                _span(r.ratio_low, r.ratio_high),
                r.pairs,
            )
            for r in report.concurrency
        ]
        heads = ("concurrent requests", "tokens/s, engine", "tokens/s, promoted", "ratio", "95 % interval", "pairs")
        parts += [
            _heading(
                "The proof",
                "The same requests, replayed in pairs in one live process, with the promoted kernels off and on.",
            ),
            _figure(charts.concurrency(report.concurrency)),
            _table(heads, rows, numbers=range(1, 6)),
        ]
    if report.token_comparison:
        parts.append(f"<p>{escape(report.token_comparison)}</p>")
    if report.operator_times:
        times = [
            (
                r.operator,
                f"{r.before_ms:,.1f}",
                f"{r.after_ms:,.1f}",
                _ratio(r.before_ms / r.after_ms) if r.after_ms else "",
            )
            for r in report.operator_times
        ]
        parts += [
            _heading("Time per operator", "What the process spent in each operator over the same requests."),
            _figure(charts.operator_times(report.operator_times)),
            _table(("operator", "before, ms", "after, ms", "ratio"), times, numbers=(1, 2, 3)),
        ]
    return "".join(parts)


def _traffic(report: DemoReport) -> str:
    if not report.traffic:
        return ""
    rows = [
        (r.operator, r.dtype, f"{r.calls:,}", f"{100 * r.share:.1f} %", _ratio(r.headroom), f"{100 * r.saving:.1f} %")
        for r in report.traffic
    ]
    return (
        _heading("Where the time goes", "The captured traffic, ranked by what an operator at its roofline would save.")
        + _figure(charts.traffic(report.traffic))
        + (_figure(charts.svg(search_charts.heat_map(report.heat), "Time by shape")) if report.heat else "")
        + _table(
            ("operator", "dtype", "calls", "share of time", "headroom", "could be saved"), rows, numbers=(2, 3, 4, 5)
        )
    )


def _search(report: DemoReport) -> str:
    parts = []
    if report.time_shares:
        parts += [
            _heading(
                "Before and after",
                "Each operator's part of the sampled time, and what is left of it with the best proven candidate for "
                "each workload.",
            ),
            _figure(charts.svg(search_charts.time_shares(report.time_shares), "Share of time before and after")),
        ]
    if report.searches:
        rows = [
            (r.operator, r.dtype, f"{r.budget_s:.0f} s", len(r.ratios), r.faster, _best(r.ratios), _ratio(r.gain))
            for r in report.searches
        ]
        heads = (
            "operator",
            "dtype",
            "budget",
            "candidates",
            "proven faster",
            "best ratio where timed",
            "gain on its traffic",
        )
        parts += [
            _heading(
                "The search",
                "Ratio over the engine's own kernel, where a candidate was timed: a dot per timed candidate, a cross "
                "for one that was not, a line for the best so far. The gain counts all of the traffic, with the best "
                "proven candidate for each workload.",
            ),
            _figure(charts.searches(report.searches)),
            _table(heads, rows, numbers=(2, 3, 4, 5, 6)),
        ]
    if report.fates:
        parts += [
            _heading("Where candidates ended", "By who proposed them, from caught earliest to proven faster."),
            _figure(charts.svg(search_charts.fates(report.fates), "What became of candidates, by pattern")),
        ]
    if report.pareto:
        parts += [
            _heading(
                "Pareto by range",
                "Every timed candidate over the range of the traffic; in green those that no other beats everywhere.",
            ),
            _figure(charts.svg(search_charts.pareto(report.pareto), "Ratio of candidates over the range")),
        ]
    if report.leaders:
        leaders = [
            (
                r.operator,
                r.dtype,
                r.pattern,
                r.parameters,
                _ratio(r.ratio),
                f"{r.ratio_low:.2f}",
                _code(records.short(r.candidate)),
            )
            for r in report.leaders
        ]
        columns = ("operator", "dtype", "pattern", "parameters", "ratio", "at least", "candidate")
        parts += [_heading("Best candidates", ""), _table(columns, leaders, numbers=(4, 5))]
    return "".join(parts)


def _decisions(report: DemoReport) -> str:
    if not report.decisions:
        return ""
    rows = [(r.table, r.decision, r.reason, r.ranges, f"{r.ratio_low:.2f}") for r in report.decisions]
    heads = ("table", "decision", "reason", "ranges", "at least")
    return _heading("The decision", "What was offered to the channel, and what became of it.") + _table(
        heads, rows, numbers=(3, 4)
    )


def _kernels(report: DemoReport) -> str:
    if not report.kernels:
        return ""
    rows = [
        (
            r.operator,
            r.dtype,
            r.range,
            _ratio(r.ratio),
            f"{r.ratio_low:.2f}",
            f"{r.hits:,}",
            _code(records.short(r.candidate)),
        )
        for r in report.kernels
    ]
    heads = ("operator", "dtype", "range", "ratio", "at least", "hits", "candidate")
    return (
        _heading(
            "The kernel table", "What was signed and published; outside these ranges the engine's own kernels run."
        )
        + _figure(charts.kernels(report.kernels))
        + _table(heads, rows, numbers=(3, 4, 5))
    )


def _turn(report: DemoReport) -> str:
    parts = [_heading("This turn", ""), _list(report.facts)]
    if report.latencies_ms:
        rows = [(name, f"{value:,.1f}") for name, value in report.latencies_ms.items()]
        parts.append(_table(("from the channel's move to the first call", "ms"), rows, numbers=(1,)))
    if report.phases_s:
        phases = [(name, f"{value:,.1f}") for name, value in report.phases_s.items()]
        phases.append(("all", f"{sum(report.phases_s.values()):,.1f}"))
        parts += [_heading("Time per phase", ""), _table(("phase", "seconds"), phases, numbers=(1,))]
    if report.commands:
        parts += [_heading("Look further", ""), _list({name: _code(text) for name, text in report.commands.items()})]
    return "".join(parts)


class _Code(str):
    """Text to be set as code."""


def _code(text: str) -> str:
    return _Code(text)


def _cell(value: object) -> str:
    text = escape(str(value))
    return f"<code>{text}</code>" if isinstance(value, _Code) else text


def _heading(title: str, text: str) -> str:
    return f"<h2>{escape(title)}</h2>" + (f"<p>{escape(text)}</p>" if text else "")


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int]) -> str:
    right = set(numbers)

    def line(tag: str, cells: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=number' if index in right else ''}>{_cell(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{line("th", heads)}</tr></thead><tbody>{body}</tbody></table></div>'


def _list(items: dict[str, str]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{_cell(value)}</dd>" for name, value in items.items()) + "</dl>"
    )


def _ratio(value: float) -> str:
    return f"{value:.2f}x"


def _span(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


def _best(ratios: Iterable[float | None]) -> str:
    timed = [ratio for ratio in ratios if ratio is not None]
    return _ratio(max(timed)) if timed else "-"
