"""Texts to a file of vectors: they run in sections, and a section is on the disk before its successor is written.

A run that was killed goes on after its last section (see `partial`). One thread writes what another computes.
"""

import hashlib
import itertools
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmo_fast.embed.progress import Progress
from elmo_fast.environment import version
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.files.atomic import to_disk
from elmo_fast.files.lock import lock_of
from elmo_fast.model.bilm import BiLm
from elmo_fast.ops.backend import runs_as
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.text.batching import not_a_string
from elmo_fast.text.readers import Text
from elmo_fast.vectors import layouts
from elmo_fast.vectors.keys import with_unique_keys
from elmo_fast.vectors.partial import PartialResult
from elmo_fast.vectors.spec import Target
from elmo_fast.vectors.writer import SegmentWriter

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 30.0  # between two sections
_HEAD = 100  # texts by which another input is recognized


class Written(NamedTuple):
    """The size of an output, with what earlier runs did."""

    texts: int
    tokens: int


@dataclass(frozen=True)
class Runner:
    """How texts become vectors.

    `group` divides texts into groups, after which a section may end; `run` gives the vectors of the texts of groups in
    order, [layers, T, 2 P] each, in the `state` of the model's calls; carried ones go on from call to call. `settings`
    are JSON values.
    """

    bilm: BiLm
    group: Callable[[Iterator[Text]], Iterator[list[Text]]]
    run: Callable[[Iterator[list[Text]]], Iterator[np.ndarray]]
    settings: Mapping[str, Any]
    state: str

    def states(self) -> State | None:
        """A copy of the carried states on the host, None where none are carried."""
        carried = self.bilm.lstm._states if self.state == "carry" else None
        return carried and tuple(value.detach().cpu().clone() for value in carried)

    def restore(self, states: State | None) -> None:
        """Carry on from such states."""
        if self.state == "carry":
            self.bilm.lstm._states = states

    def describe(self) -> dict[str, Any]:
        """JSON values that are equal where the same texts give the same vectors."""
        bilm, table = self.bilm, self.bilm.token_table
        device = next(bilm.parameters()).device.type
        found = {"version": version("elmo-fast"), "model": bilm.fingerprint(), "state": self.state,
                 "precision": bilm.precision, "backend": bilm.backend, "device": device,
                 "effective precision": runs_as(bilm.computes_in) if device == "cpu" else bilm.computes_in,
                 "token_table": table and [table.fingerprint, len(table), table.storage, table.unknown]}
        if self.state == "carry":
            found["initial states"] = _states_digest(self.states())
        if self.state == "warm":
            found["warm text"] = _digest(json.dumps(list(map(list, bilm.warm_text))).encode()).hexdigest()
        return {**found, **self.settings}


def write_corpus(texts: Iterable[Text], runner: Runner, target: Target, *, resume: bool = False,
                 progress: Progress | None = None, commit_seconds: float | None = None,
                 lock: Path | None = None) -> Written:
    """Write the vectors of texts, atomically; returns the size of the output.

    Sections end about `commit_seconds` after they began (a text that takes longer is not divided). What a run that did
    not end has left goes on with `resume`; `ConfigurationError` if that has other settings or texts. Without `resume`
    it is refused if it is of this input with these settings, so that no work is lost, and else replaced. `lock` is the
    path of a lock on the target that the caller has.
    """
    with lock_of(target.path, lock) as part:
        part.mkdir()
        partial = PartialResult(Path(os.path.realpath(target.path)), {**runner.describe(), **target.settings()},
                                part)
        feed = _Feed(with_unique_keys(texts, target))
        _begin(partial, feed, runner, resume)
        if partial.commits:
            runner.restore(partial.states())
        run = _Run(runner, target, partial, feed, part)
        try:
            with progress or Progress(False) as bar:
                run.embed(bar, COMMIT_SECONDS if commit_seconds is None else commit_seconds)
            run.finish()
            return Written(feed.count, feed.tokens)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(*([f"interrupted; {_remains(partial)}"] if partial.commits else [])) from None
        except BaseException:
            if partial.commits:
                logger.warning("%s", _remains(partial))
            raise


def _remains(partial: PartialResult) -> str:
    return f"{partial.texts:,} texts are done; resume (--resume) goes on after them, from {partial.folder}"


def _begin(partial: PartialResult, feed: "_Feed", runner: Runner, resume: bool) -> None:
    """Take what is there, and skip its texts; or refuse it; or leave it to be replaced."""
    found = partial.find()
    if found is None or not found.commits:
        return
    differences = found.differences(partial.settings)
    if not resume:
        if not differences and feed.begins_with(*found.head):
            raise ConfigurationError(f"output: found a partial result of {found.texts:,} texts of this input in "
                                     f"{partial.folder}; resume (--resume) goes on after them, or remove it to begin "
                                     "anew")
        logger.warning("%s: the partial result of %d texts will be replaced: it has %s", partial.folder, found.texts,
                       differences or "another input")
        return
    if differences:
        raise ConfigurationError(f"resume: expected the settings of {partial.folder}, which has {differences}")
    found.drop_damaged()
    feed.skip(found.texts, runner.group if runner.state == "carry" else None)
    if found.commits and feed.count > found.texts:
        raise ConfigurationError(f"resume: expected an input whose batches end after the {found.texts:,} texts that "
                                 f"are done in {partial.folder}, as states are carried from batch to batch; found more "
                                 "texts")
    if found.commits and (feed.count, feed.digest) != (found.texts, found.commits[-1].digest):
        raise ConfigurationError(f"resume: expected an input that begins with the {found.texts:,} texts that are done "
                                 f"in {partial.folder}, found others")
    partial.commits, partial.head = found.commits, found.head
    feed.head = found.head


class _Feed:
    """Texts that are read once, counted and digested; `waiting` are those without vectors."""

    def __init__(self, texts: Iterable[Text]):
        self._texts = iter(texts)
        self._digest = _digest()
        self.count = self.tokens = 0
        self.head: tuple[int, str] | None = None  # of the first texts
        self.waiting: deque[Text] = deque()

    @property
    def digest(self) -> str:
        """Of all texts so far."""
        return self._digest.hexdigest()

    def begins_with(self, count: int, digest: str) -> bool:
        """Whether the first texts have a digest. They are not skipped."""
        first = list(itertools.islice(self._texts, count))
        self._texts = itertools.chain(first, self._texts)
        value = _digest()
        for text in first:
            value.update(_content(text))
        return len(first) == count and value.hexdigest() == digest

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
            if self.count == _HEAD:
                self.head = self.count, self.digest
            yield text


class _Run:
    """The sections of a run."""

    def __init__(self, runner: Runner, target: Target, partial: PartialResult, feed: _Feed, part: Path):
        self._runner, self._target, self._partial, self._feed = runner, target, partial, feed
        self._segment = part / "segment"
        self._groups = runner.group(iter(feed))
        self._is_ended = False
        self._written = 0  # texts in the last segment

    def embed(self, bar: Progress, commit_seconds: float) -> None:
        """Write all segments; all but the last are committed."""
        clock = _Clock(commit_seconds)
        bar.skip(self._partial.texts)
        with SegmentWriter(self._open_segment, self._target.form) as writer:
            while not self._is_ended:
                for vectors in self._runner.run(self._section(clock)):
                    text = self._feed.waiting.popleft()
                    writer.write(text, vectors)
                    bar.update(len(text.tokens))
                    stops.check()
                self._written = writer.texts
                if not self._is_ended:
                    writer.end_segment(self._commit(self._runner.states()))
                    clock.restart()

    def finish(self) -> None:
        """Make the output of the segments."""
        target, partial = self._target, self._partial
        has_segment = bool(self._written or not partial.commits)
        if has_segment and not self._written:
            with self._open_segment():
                pass
        if has_segment and (partial.commits or layouts.is_directory(target.layout, target.path)):
            self._commit(self._runner.states())()
        if partial.commits:
            layouts.join(target.layout, partial.links(), self._segment, target.path, target.form,
                         fingerprint=partial.settings, **target.options)
            for path in self._segment.parent.glob(f"{self._segment.name}*"):
                for each in (*path.rglob("*"), path):
                    to_disk(each)
        layouts.place(target.layout, self._segment, target.path)
        if partial.commits:
            to_disk(Path(os.path.realpath(target.path)).parent)
        partial.remove()

    def _section(self, clock: "_Clock") -> Iterator[list[Text]]:
        """Groups until the section ends."""
        for group in self._groups:
            self._feed.waiting.extend(group)
            yield group
            if clock.is_due():
                return
        self._is_ended = True

    def _open_segment(self) -> AbstractContextManager:
        target = self._target
        return layouts.segment(target.layout, self._segment, target.path, target.form,
                               fingerprint=self._partial.settings, **target.options)

    def _commit(self, states: State | None) -> Callable[[], None]:
        """What takes the segment that was closed into the partial result."""
        feed, partial = self._feed, self._partial
        texts, digest, head = feed.count, feed.digest, feed.head or (feed.count, feed.digest)

        def commit() -> None:
            partial.head = partial.head or head
            partial.commit(lambda path: layouts.place(self._target.layout, self._segment, path), texts, digest, states)
        return commit


class _Clock:
    """When a section is due to end: early enough for the texts that were read ahead to be done in time."""

    def __init__(self, seconds: float):
        self._seconds, self._drain = seconds, 0.0
        self._begin = self._due = time.monotonic()

    def is_due(self) -> bool:
        self._due = time.monotonic()
        return self._due - self._begin >= self._seconds - min(self._drain, self._seconds / 2)

    def restart(self) -> None:
        self._begin = time.monotonic()
        self._drain = self._begin - self._due


def _digest(content: bytes = b""):
    return hashlib.blake2b(content, digest_size=16)


def _content(text: Text) -> bytes:
    try:
        return "\x1f".join((text.key, str(len(text.tokens)), *text.tokens, "")).encode("utf-8", "surrogatepass")
    except TypeError as error:
        raise not_a_string(error) from error


def _states_digest(states: State | None) -> str | None:
    return states and _digest(b"".join(value.numpy().tobytes() for value in states)).hexdigest()
