"""Self-contained HTML pages of similarity maps and of nearest contexts, for light and dark screens."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from elmo_fast.explore.nearest import Context, Group, Report

# Tables of cosines, in these pages and in the server's.
COSINE_STYLE = Path(__file__).with_name("cosines.css").read_text(encoding="utf-8")
_STYLE = COSINE_STYLE + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
_PAGE = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
STRONG, MID = 0.73, 0.5  # cosines above which text changes its colour, on light and on dark screens
_WIDTH, _HEIGHT, _EDGE = 640, 400, 24


def comparison_page(maps: dict[str, np.ndarray], first: Sequence[str], second: Sequence[str]) -> str:
    """A table for each map, float32 [T1, T2]; colours follow the cosines."""
    key = '<div class="key"><span>\u22121</span><i></i><span>1</span><span>cosine</span></div>'
    lead = f"<p>Rows: {escape(' '.join(first))}</p>\n<p>Columns: {escape(' '.join(second))}</p>\n{key}"
    columns = "".join(f'<th scope="col"><span>{escape(token)}</span></th>' for token in second)
    tables = (f'<section class="wide"><h2>{escape(title)}</h2>\n<table>\n'
              f'<thead><tr><td class="corner"></td>{columns}</tr></thead>\n'
              + "\n".join(_row(token, values) for token, values in zip(first, cosines)) + "\n</table></section>"
              for title, cosines in maps.items())
    return _page("Tokens of two sentences, compared", "\n".join([lead, '<div class="maps">', *tables, "</div>"]))


def _row(token: str, cosines: np.ndarray) -> str:
    return f'<tr><th scope="row">{escape(token)}</th>{"".join(map(_cell, cosines.tolist()))}</tr>'


def _cell(cosine: float) -> str:
    if np.isnan(cosine):
        return "<td>\u2013</td>"
    strong = ' class="mid strong"' if abs(cosine) > STRONG else ' class="mid"' if abs(cosine) > MID else ""
    end = "plus" if cosine >= 0 else "minus"
    return f'<td{strong} style="--v:{abs(cosine):.3f};--end:var(--{end})">{number_text(cosine, 2)}</td>'


def report_page(report: Report, title: str) -> str:
    """Keyword-in-context lines with a bar for each cosine, and the word's occurrences in a plane."""
    lead = f"<p>{report.count:,} occurrences. The bars are cosines from 0 to 1.</p>"
    groups = (line for number, group in enumerate(report.groups) for line in _group(group, _letter(number)))
    return _page(title, "\n".join([lead, *groups, *_plane(report)]))


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def _group(group: Group, letter: str) -> Iterator[str]:
    badge = f'<span><span class="badge">{letter}</span></span>'
    yield f'<section aria-label="query {letter}">\n{_line(group.query, badge, "div", " query")}\n<ol>'
    for context in group.neighbours:
        share = max(0.0, np.nan_to_num(context.similarity))
        bar = (f'<span class="score"><i style="--w:{share:.1%}"></i><span>{number_text(context.similarity, 3)}</span>'
               "</span>")
        yield _line(context, bar, "li")
    yield "</ol>\n</section>"


def _line(context: Context, lead: str, tag: str, kind: str = "") -> str:
    place = "" if context.line is None else f"line {context.line:,}"
    return (f'<{tag} class="line{kind}">{lead} <bdi class="before"><bdi>{escape(context.before)}</bdi></bdi> '
            f'<b>{escape(context.word)}</b> <bdi>{escape(context.after)}</bdi> '
            f'<span class="place">{place}</span></{tag}>')


def _plane(report: Report) -> Iterator[str]:
    """The occurrences as dots of an SVG, the queries above the others."""
    low, high = report.points.min(axis=0), report.points.max(axis=0)
    scale = np.where(high > low, (np.array([_WIDTH, _HEIGHT]) - 2 * _EDGE) / np.maximum(high - low, 1e-12), 0)
    places = np.where(scale > 0, (report.points - low) * scale + _EDGE, np.array([_WIDTH, _HEIGHT]) / 2)
    yield (f"<h2>The occurrences in a plane</h2>\n<p>The two directions in which they differ most, with "
           f"{report.fraction:.0%} of the variance. Dots that are near each other here may be apart in the other "
           "directions; point at a dot to read its context.</p>")
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="occurrences of the word in a plane">'
    numbered = list(enumerate(zip(places.tolist(), report.contexts)))
    for number, ((x, y), context) in numbered[len(report.groups) :] + numbered[: len(report.groups)]:
        words = escape(" ".join(filter(None, (context.before, context.word, context.after))))
        is_query = number < len(report.groups)
        radius, kind = (9, ' class="query-point"') if is_query else (4.5, "")
        label = f'<text x="{x:.1f}" y="{y + 4:.1f}">{_letter(number)}</text>' if is_query else ""
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"{kind}><title>{words}</title></circle>{label}'
    yield "</svg>"


def number_text(value: float, digits: int) -> str:
    """A number with a minus sign in place of a hyphen, and no sign before zero; a dash for NaN."""
    return "\u2013" if np.isnan(value) else f"{value:z.{digits}f}".replace("-", "\u2212")


def _page(title: str, body: str) -> str:
    return _PAGE.format(title=escape(title), style=_STYLE, body=body)
