"""Progress bars on stderr, of texts and tokens and of other units."""

import contextlib
import io
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

# Texts per second, also below one: tqdm's own format then has seconds per text, with a gap in the unit.
_FORMATS = {"known": "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]",
            "unknown": "{n_fmt}{unit} [{elapsed}, {rate_noinv_fmt}{postfix}]"}


class _Hidden(contextlib.AbstractContextManager):
    """A bar that is not shown, for which tqdm is not imported."""

    disable = True

    def __exit__(self, *_) -> None:
        pass

    def update(self, count: int = 1) -> None:
        pass

    def close(self) -> None:
        pass


def progress_bar(total: int | None, unit: str, how: bool = True, **options: Any) -> "tqdm | _Hidden":
    """tqdm's bar on stderr if that is a terminal and `how` is true; `unit` in the plural, `options` are tqdm's."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not how or not (is_terminal or "file" in options):
        return _Hidden()
    from tqdm import tqdm

    return tqdm(**{"total": total, "unit": f" {unit}", "bar_format": _FORMATS[
        "unknown" if total is None else "known"], **options})


class Progress:
    """A progress bar of texts and tokens if stderr is a terminal; with `how="lines"` a line every ten seconds anyway.

    `total` is the number of texts if it is known, `unit` their name.
    """

    def __init__(self, how: bool | str, total: int | None = None, unit: str = "sentences"):
        as_lines = {"file": _Lines(), "mininterval": 10, "ncols": 80}
        self._how = {"total": total, "unit": unit, "how": bool(how), **(as_lines if how == "lines" else {})}

    def __enter__(self) -> "Progress":
        self._tokens, self._begin = 0, time.monotonic()
        self._bar = progress_bar(**self._how)
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def skip(self, texts: int) -> None:
        """Start after `texts` texts, which an earlier run embedded."""
        if texts:
            self._bar.initial = self._bar.n = self._bar.last_print_n = texts

    def update(self, tokens: int) -> None:
        """Count a text of so many tokens."""
        if not self._bar.disable:
            self._tokens += tokens
            rate = self._tokens / max(time.monotonic() - self._begin, 1e-3)
            count, rate = map(self._bar.format_sizeof, (self._tokens, rate))
            self._bar.set_postfix_str(f"{count} tokens, {rate}/s", refresh=False)
            self._bar.update()


class _Lines(io.TextIOBase):
    """A file for tqdm that writes every update to stderr as a separate line."""

    def write(self, text: str) -> int:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)
        return len(text)
