"""Strings stored end to end, as bytes and offsets of their ends, for words and texts in files of vectors."""

from collections.abc import Iterator, Sequence

import numpy as np


def joined(strings: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Strings as UTF-8 bytes end to end, uint8, and their ends, int64 [N]. Lone surrogates are encoded too."""
    content = "".join(strings).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
    if lengths.sum() < len(content):  # not only ASCII
        lengths[:] = [len(string.encode("utf-8", "surrogatepass")) for string in strings]
    return np.frombuffer(content, dtype=np.uint8), np.cumsum(lengths)


def split(content: np.ndarray, ends: np.ndarray) -> list[str]:
    """Undo `joined`; `ValueError` for ends that do not fit."""
    text = content.tobytes()
    return [text[begin:end].decode("utf-8", "surrogatepass") for begin, end in spans(ends, len(text))]


def spans(ends: np.ndarray, total: int) -> Iterator[tuple[int, int]]:
    """Begin and end of every part of `total` items; `ValueError` for ends that do not rise to `total`."""
    begins = np.concatenate([[0], ends])[:-1]
    if (ends < begins).any() or (ends[-1] if len(ends) else 0) != total:
        raise ValueError(f"ends: expected offsets that rise to {total}, the length of what they divide")
    return zip(begins.tolist(), ends.tolist())
