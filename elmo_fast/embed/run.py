"""Texts to a file of vectors, in parts: a part is on the disk before the next one is counted.

A killed run continues after its last part (see `partial`). One thread writes the vectors that another computes.
"""

import functools
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from elmo_fast.embed.embedder import Runner
from elmo_fast.embed.progress import Progress
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import to_disk
from elmo_fast.files.lock import lock_of
from elmo_fast.text.batching import not_a_string
from elmo_fast.text.readers import Text
from elmo_fast.vectors import layouts
from elmo_fast.vectors.keys import with_unique_keys
from elmo_fast.vectors.partial import JOINED, PartialResult
from elmo_fast.vectors.spec import Target
from elmo_fast.vectors.writer import SegmentWriter

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 30.0  # from the begin of a part to its end


class Written(NamedTuple):
    """The size of an output, with the texts of earlier runs."""

    texts: int
    tokens: int


def write_corpus(texts: Iterable[Text], runner: Runner, target: Target, *, resume: bool = False,
                 progress: Progress | None = None, commit_seconds: float | None = None,
                 lock: Path | None = None) -> Written:
    """Write the vectors of texts, atomically; returns the size of the output.

    A part of the output ends about `commit_seconds` after it began. `resume` continues the partial result of an
    interrupted run; a partial result of other settings or texts is a `ConfigurationError`. So is any partial result
    without `resume`, so that no work is lost. `lock` is the path of a lock on the target that the caller has.
    """
    with lock_of(target.path, lock):
        feed = _Feed(with_unique_keys(texts, target))
        partial = PartialResult(target, {**runner.describe(), **target.settings()})
        _begin(partial, feed, runner, resume)
        run = _Run(runner, partial, feed)
        try:
            with progress or Progress(False) as bar:
                run.embed(bar, COMMIT_SECONDS if commit_seconds is None else commit_seconds)
            run.finish()
            return Written(feed.count, feed.tokens)
        except BaseException as error:
            if not partial.done.parts:
                partial.remove()
                raise
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(f"interrupted; {_remains(partial)}") from None
            logger.warning("%s", _remains(partial))
            raise


def _remains(partial: PartialResult) -> str:
    return f"{partial.done.texts:,} texts are done; resume (--resume) goes on after them, from {partial.folder}"


def _begin(partial: PartialResult, feed: "_Feed", runner: Runner, resume: bool) -> None:
    """Resume from the partial result of an earlier run, or refuse it."""
    earlier = partial.find()
    if earlier is None:
        return
    done, folder, settings = partial.done, partial.folder, partial.settings
    if not resume:
        raise ConfigurationError(f"output: found a partial result of {done.texts:,} texts in {folder}; resume "
                                 "(--resume) goes on after them, or remove it to begin anew")
    if differences := [f"{name} {earlier.get(name)!r:.60} and not {settings.get(name)!r:.60}"
                       for name in {**earlier, **settings} if earlier.get(name) != settings.get(name)]:
        raise ConfigurationError(f"resume: expected the settings of {folder}, which has {', '.join(differences)}")
    feed.skip(done.texts, runner.group if runner.state == "carry" else None)
    if feed.count > done.texts:
        raise ConfigurationError(f"resume: expected an input whose batches end after the {done.texts:,} texts that are "
                                 f"done in {folder}, as states are carried from batch to batch; found more texts")
    if (feed.count, feed.digest) != (done.texts, done.digest):
        raise ConfigurationError(f"resume: expected an input that begins with the {done.texts:,} texts that are done "
                                 f"in {folder}, found others")
    runner.restore(done.states)


class _Feed:
    """Texts that are read once, counted and digested; `waiting` are those without vectors."""

    def __init__(self, texts: Iterable[Text]):
        self._texts = texts
        self._digest = hashlib.blake2b(digest_size=16)
        self.count = self.tokens = 0
        self.waiting: deque[Text] = deque()

    @property
    def digest(self) -> str:
        """Of all texts so far."""
        return self._digest.hexdigest()

    def skip(self, count: int, group: Callable[[Iterator[Text]], Iterator[list[Text]]] | None) -> None:
        """Read at least so many texts if there are, in complete groups where `group` is given."""
        groups = iter(self) if group is None else group(iter(self))
        while self.count < count and next(groups, None) is not None:
            stops.check()

    def __iter__(self) -> Iterator[Text]:
        for text in self._texts:
            self._digest.update(_content(text))
            self.count += 1
            self.tokens += len(text.tokens)
            yield text


class _Run:
    """The parts of a run."""

    def __init__(self, runner: Runner, partial: PartialResult, feed: _Feed):
        self._runner, self._partial, self._feed = runner, partial, feed
        self._groups = runner.group(iter(feed))
        self._is_ended = False
        self._written = 0  # texts in the last part

    def embed(self, bar: Progress, commit_seconds: float) -> None:
        """Write all parts; all but the last are committed."""
        bar.skip(self._partial.done.texts)
        with SegmentWriter(self._open_part, self._partial.target.form) as writer:
            while not self._is_ended:
                for vectors in self._runner.run(self._groups_of_part(time.monotonic() + commit_seconds)):
                    text = self._feed.waiting.popleft()
                    writer.write(text, vectors)
                    bar.update(len(text.tokens))
                self._written = writer.texts
                if not self._is_ended:
                    writer.end_segment(functools.partial(self._partial.commit, self._feed.count, self._feed.digest,
                                                         self._runner.states()))

    def finish(self) -> None:
        """Make the output of the parts."""
        partial, target = self._partial, self._partial.target
        if not self._written and not partial.done.parts:
            with self._open_part():
                self._written = 1
        count = partial.done.parts
        if self._written:
            count += 1
        if layouts.is_directory(target.layout, target.path):
            output = partial.parts
        else:
            output = self._joined(list(map(partial.part, range(count))))
        if partial.done.parts:
            for path in output.parent.glob(f"{output.name}*"):
                for each in (*path.rglob("*"), path):
                    to_disk(each)
        layouts.place(target.layout, output, target.path)
        if partial.done.parts:
            to_disk(partial.folder.parent)
        partial.remove()

    def _joined(self, parts: list[Path]) -> Path:
        partial, target = self._partial, self._partial.target
        output = partial.parts / JOINED
        for left in output.parent.glob(f"{output.name}*"):
            left.unlink()
        layouts.join(target.layout, parts, output, target.path, target.form, fingerprint=partial.settings,
                     **target.options)
        return output

    def _groups_of_part(self, end: float) -> Iterator[list[Text]]:
        """Groups until a time, at least one."""
        for group in self._groups:
            self._feed.waiting.extend(group)
            yield group
            if time.monotonic() >= end:
                return
        self._is_ended = True

    def _open_part(self) -> AbstractContextManager:
        target = self._partial.target
        return layouts.segment(target.layout, self._partial.new_part(), target.path, target.form,
                               fingerprint=self._partial.settings, **target.options)


def _content(text: Text) -> bytes:
    try:
        return "\x1f".join((text.key, str(len(text.tokens)), *text.tokens, "")).encode("utf-8", "surrogatepass")
    except TypeError as error:
        raise not_a_string(error) from error
