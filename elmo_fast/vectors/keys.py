"""Keys of texts, which some layouts need to be unique: a clash is found before the text is computed."""

import bisect
import hashlib
import os
from collections.abc import Iterable, Iterator

from elmo_fast.errors import ConfigurationError
from elmo_fast.text.readers import Text
from elmo_fast.vectors.layouts.table import has_unique_keys
from elmo_fast.vectors.spec import Target


def with_unique_keys(texts: Iterable[Text], target: Target) -> Iterator[Text]:
    """The texts; `ConfigurationError` at once for a key given twice, which would fail only when segments are joined."""
    by_sentence = target.options.get("use_sentence_keys", False)
    if not has_unique_keys(target.layout, target.form):
        yield from texts
        return
    keys = _Keys(has_groups=target.layout == "allennlp")
    for number, text in enumerate(texts):
        key = text.text if by_sentence else text.key
        if not keys.add(key, number):
            what, way = (("use_sentence_keys: expected different sentences", "line numbers always work")
                         if by_sentence else ("output: expected different identifiers", "layout packed takes them"))
            raise ConfigurationError(f"{what}, got {key!r:.80} twice in {os.fspath(target.path)}"
                                     f"{', or a group of that name' * keys.has_groups}; {way}")
        yield text


class _Keys:
    """The keys so far: digests, and ranges of the texts whose keys are their numbers.

    With groups, as in HDF5, no key may be the part of another one before a slash.
    """

    def __init__(self, has_groups: bool):
        self.has_groups = has_groups
        self._digests: set[bytes] = set()
        self._groups: set[bytes] = set()
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, key: str, number: int) -> bool:
        """Add the key of a text; whether no other has it."""
        digest = self._digest_of(key) if self._digests or key != str(number) else b""
        is_nested = self.has_groups and "/" in key
        groups = [key[:at] for at, letter in enumerate(key) if letter == "/"] if is_nested else []
        is_new = not self._has(key, digest) and digest not in self._groups and not any(
            self._has(group, self._digest_of(group)) for group in groups)
        self._groups.update(map(self._digest_of, groups))
        if key != str(number):
            self._digests.add(digest)
        elif self._ends and self._ends[-1] == number:
            self._ends[-1] += 1
        else:
            self._begins.append(number)
            self._ends.append(number + 1)
        return is_new

    def _has(self, key: str, digest: bytes) -> bool:
        if digest in self._digests or not (key.isascii() and key.isdecimal() and len(key) < 20):
            return digest in self._digests
        at = bisect.bisect_right(self._begins, int(key)) - 1
        return at >= 0 and int(key) < self._ends[at] and str(int(key)) == key

    def _digest_of(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
