"""Keys of texts, which some layouts need to be unique: a clash is found before the text is computed."""

import os
from collections.abc import Iterable, Iterator

from elmo_fast.errors import ConfigurationError
from elmo_fast.text.readers import Text
from elmo_fast.vectors.layouts.table import has_unique_keys
from elmo_fast.vectors.spec import Target


def with_unique_keys(texts: Iterable[Text], target: Target) -> Iterator[Text]:
    """The texts; `ConfigurationError` at once for a key given twice, which would fail only when parts are joined."""
    if not has_unique_keys(target.layout, target.form):
        yield from texts
        return
    by_sentence = target.options.get("use_sentence_keys", False)
    expected, remedy = "output: expected different identifiers", "layouts parquet and arrow take them"
    if by_sentence:
        expected, remedy = "use_sentence_keys: expected different sentences", "line numbers always work"
    keys, also = _Keys(), ""
    if target.layout == "allennlp":
        keys, also = _KeysWithGroups(), ", or a group of that name"
    for text in texts:
        key = text.text if by_sentence else text.key
        if not keys.add(key):
            raise ConfigurationError(f"{expected}, got {key!r:.80} twice in {os.fspath(target.path)}{also}; {remedy}")
        yield text


class _Keys:
    """The keys of the texts so far. A key that is the number of its text takes a byte."""

    def __init__(self):
        self._others: set[str] = set()
        self._is_number = bytearray()

    def add(self, key: str) -> bool:
        """Add the key of the next text; whether no other text has it."""
        is_new, is_number = not self._has(key), key == str(len(self._is_number))
        self._is_number.append(is_number)
        if not is_number:
            self._others.add(key)
        return is_new

    def _has(self, key: str) -> bool:
        if key in self._others:
            return True
        number = int(key) if key.isascii() and key.isdecimal() and len(key) < 20 else len(self._is_number)
        return number < len(self._is_number) and bool(self._is_number[number]) and str(number) == key


class _KeysWithGroups(_Keys):
    """As in HDF5, no key may be the part of another one before a slash."""

    def __init__(self):
        super().__init__()
        self._groups: set[str] = set()

    def add(self, key: str) -> bool:
        groups = [key[:at] for at, letter in enumerate(key) if letter == "/"]
        is_new = key not in self._groups and not any(map(self._has, groups))
        self._groups.update(groups)
        return super().add(key) and is_new
