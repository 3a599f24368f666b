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
    is_nested = target.layout == "allennlp"  # in HDF5 no key may be the part of another one before a slash
    keys: set[str] = set()
    groups: set[str] = set()
    for text in texts:
        key = text.text if by_sentence else text.key
        parents = [key[:end] for end, letter in enumerate(key) if letter == "/"] if is_nested else []
        if key in keys or key in groups or not keys.isdisjoint(parents):
            also = ", or a group of that name" if is_nested else ""
            raise ConfigurationError(f"{expected}, got {key!r:.80} twice in {os.fspath(target.path)}{also}; {remedy}")
        keys.add(key)
        groups.update(parents)
        yield text
