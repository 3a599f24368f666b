"""Pictures of similarity maps and of nearest contexts: .png, .svg and .pdf by matplotlib, .html and .txt without it."""

import io
import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError
from elmo_fast.explore import pages
from elmo_fast.explore.comparison import Comparison
from elmo_fast.explore.nearest import Context, Report, report_lines
from elmo_fast.files.atomic import check_target, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = (".png", ".svg", ".pdf")  # by matplotlib
MAPS, CONTEXTS = (*DRAWN, ".html"), (*DRAWN, ".html", ".txt")
NEGATIVE, ZERO, POSITIVE = "#8a3606", "#f1f0ec", "#12508f"
MOST_TOKENS = 300  # of a text in a drawing
_INK, _MUTED, _MIDDLE = "#1d2126", "#5f6771", "#767676"  # the last on pages of any colour
_LONGEST_LABEL = 18


def check_picture(path: str | os.PathLike, suffixes: Sequence[str]) -> None:
    """Raise an error if no picture can be written to `path`.

    `ConfigurationError` for another suffix, `ImportError` if matplotlib is needed and missing, and `OSError` for a
    directory where no file can be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in suffixes:
        raise ConfigurationError(f"output: expected a file that ends in {', '.join(suffixes)}, got {os.fspath(path)}")
    if suffix in DRAWN:
        _figure()
    check_target(path, "output")


def save_comparison(comparison: Comparison, path: str | os.PathLike, weights: Sequence[float] | None = None) -> None:
    """Write heat maps of a comparison, for every layer and with `weights` for the mixture: .png, .svg, .pdf, .html."""
    check_picture(path, MAPS)
    maps = named_maps(comparison, weights)
    first, second = comparison.first_tokens, comparison.second_tokens
    if Path(path).suffix.lower() == ".html":
        write_bytes(path, pages.comparison_page(maps, first, second).encode("utf-8", "replace"))
    else:
        _save(_draw_maps(maps, first, second), path, "none")


def save_report(report: Report, path: str | os.PathLike, title: str) -> None:
    """Write nearest contexts under a title: .html, .txt (the rows alone), .png, .svg or .pdf."""
    check_picture(path, CONTEXTS)
    suffix = Path(path).suffix.lower()
    if suffix in DRAWN:
        _save(_draw_report(report, title), path, "white")
    else:
        lines = "".join(f"{line}\n" for line in report_lines(report))
        write_bytes(path, (pages.report_page(report, title) if suffix == ".html" else lines).encode("utf-8", "replace"))


def named_maps(comparison: Comparison, weights: Sequence[float] | None = None) -> dict[str, np.ndarray]:
    """Maps float32 [T1, T2] by their titles: the layers in order, and with `weights` their mixture."""
    maps = {f"layer {number}": cosines for number, cosines in enumerate(comparison.layers())}
    if weights is not None:
        maps[f"mixture {', '.join(f'{weight:g}' for weight in weights)}"] = comparison.mixed(weights)
    return maps


def _figure(*size: float) -> "Figure":
    with extra("plots"):
        from matplotlib.figure import Figure
    return Figure(figsize=size or None)


def _draw_maps(maps: dict[str, np.ndarray], first: Sequence[str], second: Sequence[str]) -> "Figure":
    longest = max(len(first), len(second))
    if longest > MOST_TOKENS:
        raise ConfigurationError(f"text: expected at most {MOST_TOKENS} tokens to draw, got {longest}")
    cell = max(0.14, min(0.46, 9 / longest))  # inches
    rows, columns = [_label(token) for token in first], [_label(token) for token in second]
    width, height = (cell * count + 0.09 * max(map(len, labels)) + 0.5
                     for count, labels in ((len(second), rows), (len(first), columns)))
    across = max(1, min(len(maps), int(20 / width)))
    down = -(-len(maps) // across)
    figure = _figure(across * width + 0.9, down * (height + 0.3))
    figure.set_layout_engine("constrained")
    families = _families([*rows, *columns])
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, (title, cosines) in zip(panels, maps.items()):
        image = _draw_map(axes, cosines, rows, columns, cell, families)
        axes.set_title(title, fontsize=10, color=_MIDDLE, pad=8)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)
    bar = figure.colorbar(image, ax=panels.tolist(), fraction=0.05, aspect=24, shrink=1 / down,
                          ticks=[-1, -0.5, 0, 0.5, 1])
    bar.set_label("cosine", color=_MIDDLE, fontsize=9)
    bar.ax.tick_params(labelsize=8, colors=_MIDDLE, length=0)
    bar.outline.set_visible(False)
    return figure


def _draw_map(axes: "Axes", cosines: np.ndarray, rows: list[str], columns: list[str], cell: float, families: list[str]):
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("cosine", [NEGATIVE, ZERO, POSITIVE]).with_extremes(bad="white")
    image = axes.imshow(cosines, cmap=colors, vmin=-1, vmax=1)
    style = {"fontsize": min(9, 50 * cell), "fontfamily": families, "parse_math": False, "color": _MIDDLE}
    axes.set_xticks(range(len(columns)), columns, rotation=90 if max(map(len, columns)) > 3 else 0, **style)
    axes.set_yticks(range(len(rows)), rows, **style)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xticks(np.arange(0.5, len(columns) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(rows) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
    if cell >= 0.38:
        for (row, column), value in np.ndenumerate(cosines):
            axes.text(column, row, pages.number_text(value, 2), ha="center",
                      va="center", fontsize=17 * cell, color="white" if abs(value) > pages.STRONG else _INK)
    return image


def _draw_report(report: Report, title: str) -> "Figure":
    count = sum(len(group.neighbours) + 2 for group in report.groups)
    figure = _figure(13, 0.27 * count + 0.7)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 13), ylim=(0.27 * count + 0.7, 0))
    axes.axis("off")
    contexts = [context for group in report.groups for context in (group.query, *group.neighbours)]
    title = _printable(title)
    families = _families([title, *(_printable(f"{context.before}{context.word}{context.after}")
                                   for context in contexts)])
    axes.text(0.3, 0.35, title, fontsize=12, va="center", color=_INK, fontfamily=families, parse_math=False)
    y = 0.85
    for group in report.groups:
        for context in (group.query, *group.neighbours):
            _draw_context(axes, context, y, families)
            y += 0.27
        y += 0.27
    return figure


def _draw_context(axes: "Axes", context: Context, y: float, families: list[str]) -> None:
    """A row: bar and cosine at the left, the word in the middle; a shade behind a query."""
    from matplotlib.patches import Rectangle

    is_query = context.similarity is None
    if is_query:
        axes.add_patch(Rectangle((0.2, y - 0.135), 12.6, 0.27, color=ZERO, linewidth=0))
        axes.text(0.3, y, "query", fontsize=9, va="center", color=_MUTED)
    else:
        share = max(0.0, np.nan_to_num(context.similarity))
        axes.add_patch(Rectangle((0.3, y - 0.07), 1.2, 0.14, color=ZERO, linewidth=0))
        axes.add_patch(Rectangle((0.3, y - 0.07), 1.2 * share, 0.14, color=POSITIVE, linewidth=0))
        axes.text(1.6, y, f"{context.similarity:.3f}", fontsize=9, va="center", color=_INK)
    style = {"fontsize": 9.5, "va": "center", "fontfamily": families, "parse_math": False}
    axes.text(7.0, y, _printable(context.before), ha="right", color=_MUTED, **style)
    word = axes.text(7.08, y, _printable(context.word), fontweight="bold", color=POSITIVE, **style)
    axes.annotate(_printable(context.after), (1, 0.5), (5, 0), xycoords=word, textcoords="offset points", color=_MUTED,
                  **style)


def _printable(text: str) -> str:
    """The text without the characters that no font can draw: control characters and lone surrogates."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _label(token: str) -> str:
    printable = _printable(token)
    return printable if len(printable) <= _LONGEST_LABEL else f"{printable[: _LONGEST_LABEL - 1]}\u2026"


def _families(texts: Iterable[str]) -> list[str]:
    """Font families with the characters of the texts, the default first; warns of characters without a font."""
    from matplotlib import font_manager

    def letters(path: str) -> set[int]:
        return set(font_manager.get_font(path).get_charmap())

    missing = set(map(ord, "".join(texts))) - {ord(" ")}
    families = ["DejaVu Sans"]
    missing -= letters(font_manager.findfont("DejaVu Sans"))
    for font in font_manager.fontManager.ttflist if missing else ():
        # the font "Last Resort" has only boxes
        is_real = font.style == "normal" and not font.name.startswith("Last Resort")
        if is_real and (covered := missing & letters(font.fname)):
            families.append(font.name)
            missing -= covered
        if not missing:
            break
    if missing:
        shown = " ".join(map(chr, sorted(missing)[:10]))
        logging.getLogger(__name__).warning("no installed font has the characters %s: they are drawn as boxes; an "
                                            ".html output uses the browser's fonts", shown)
    return families


def _save(figure: "Figure", path: str | os.PathLike, background: str) -> None:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(content, format=Path(path).suffix.lower()[1:], dpi=120, bbox_inches="tight", pad_inches=0.15,
                       facecolor=background)
    write_bytes(path, content.getvalue())
