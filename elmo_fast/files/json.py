"""Read JSON files, with errors that name the file."""

import json
import os
from typing import Any

from elmo_fast.arguments import check_file
from elmo_fast.errors import ConfigurationError, parsing

MOST_JSON = 64 << 20  # bytes of a file


def read_json(path: str | os.PathLike, name: str = "options_file") -> dict[str, Any]:
    """The object in a JSON file; `ConfigurationError`, which calls the file `name`, for anything else."""
    path = check_file(name, path, ConfigurationError)
    where = f"{name} {path}"
    with parsing(where, "a file that can be read"), open(path, "rb") as file:
        content = file.read(MOST_JSON + 1)
    if len(content) > MOST_JSON:
        raise ConfigurationError(f"{where}: expected at most {MOST_JSON >> 20} MB, got more")
    content = parse_json(content, where)
    if not isinstance(content, dict):
        raise ConfigurationError(f"{where}: expected a JSON object, got {content!r:.80}")
    return content


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text in UTF-8, with or without the byte order mark that Windows editors add.

    `ConfigurationError`, which begins with `where`, for anything else, and for an object with the same key twice.
    """
    with parsing(where, "JSON, got something else"):
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {twice!r:.80} twice in an object")
    return content
