"""The texts and models that every benchmark runs on, by name.

`ELMO_FAST_SHARED` (default `../shared`) holds `text/wikitext2_valid.txt`; where it is absent, made-up text takes its
place, with English word and sentence lengths and repetition. Every text comes with its source.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from elmo_fast.bench.timing import generated_sentences
from elmo_fast.testing import SIZES, standard_options

LETTERS = "ACDEFGHIKLMNPQRSTVWYBXZUO"  # amino acids, as SeqVec's users write them
RESIDUES, DOCUMENT_TOKENS = 500, 8000
SHORT = 3, 8  # tokens of a short sentence
DEEP = "four layers"  # the small model with two more layers
MODELS = ("bundled", *SIZES, DEEP)


def shared_folder() -> Path:
    root = Path(__file__).resolve().parent.parent
    return Path(os.environ.get("ELMO_FAST_SHARED") or root.parent / "shared")


# ---- texts ---------------------------------------------------------------------------------


def read(name: str, count: int) -> tuple[list[list[str]], str]:
    """The first `count` sentences, sequences or documents of a text of `TEXTS`, and where they come from."""
    return TEXTS[name](count)


def running_text(count: int) -> tuple[list[list[str]], str]:
    """The first `count` sentences, and where they come from: the file's name or 'generated'."""
    path = shared_folder() / "text" / "wikitext2_valid.txt"
    if not path.exists():
        return generated_sentences(count), "generated (Zipf)"
    sentences = list(itertools.islice(_sentences(path), count))
    if len(sentences) < count:
        raise ValueError(f"count: {path.name} has {len(sentences)} sentences, {count} were asked for")
    return sentences, path.name


def short_sentences(count: int) -> tuple[list[list[str]], str]:
    """Running text in pieces of 3 to 8 tokens, from its beginning again where it ends."""
    tokens, source = _tokens()
    return list(itertools.islice(pieces(tokens), count)), f"{source} in pieces of {SHORT[0]} to {SHORT[1]} tokens"


def pieces(tokens: list[str]) -> Iterator[list[str]]:
    """Pieces of random lengths, without end."""
    rng, running = np.random.default_rng(0), itertools.cycle(tokens)
    while True:
        for length in rng.integers(SHORT[0], SHORT[1] + 1, 1024).tolist():
            yield list(itertools.islice(running, length))


def long_documents(count: int) -> tuple[list[list[str]], str]:
    """Running text in documents of 8,000 tokens, from its beginning again where it ends."""
    tokens, source = _tokens()
    running = itertools.cycle(tokens)
    documents = [list(itertools.islice(running, DOCUMENT_TOKENS)) for _ in range(count)]
    return documents, f"{source} in documents of {DOCUMENT_TOKENS:,} tokens"


def proteins(count: int, residues: int = RESIDUES, seed: int = 0) -> tuple[list[list[str]], str]:
    """Sequences of random residues."""
    drawn = np.random.default_rng(seed).integers(0, len(LETTERS), (count, residues))
    return [[LETTERS[k] for k in row] for row in drawn], f"{len(LETTERS)} random letters, {residues} a sequence"


TEXTS = {"running text": running_text, "short sentences": short_sentences, "long documents": long_documents,
         "proteins": proteins}


def _tokens() -> tuple[list[str], str]:
    path = shared_folder() / "text" / "wikitext2_valid.txt"
    sentences, source = (_sentences(path), path.name) if path.exists() else running_text(8192)
    return list(itertools.chain.from_iterable(sentences)), source


def _sentences(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            tokens = line.split()
            if tokens and tokens[0] != "=":  # headings are not running text
                yield from _split_sentences(tokens)


def _split_sentences(tokens: list[str]) -> list[list[str]]:
    """Cuts a tokenized paragraph after each full stop; closing quotes stay with their sentence."""
    sentences, current = [], []
    for token in tokens:
        if token in ('"', "'", ")") and not current and sentences:
            sentences[-1].append(token)
            continue
        current.append(token)
        if token in (".", "!", "?"):
            sentences.append(current)
            current = []
    return [*sentences, current] if current else sentences


# ---- facts on texts, options of models -----------------------------------------------------


def batches(sentences: list, size: int) -> list[list]:
    return [sentences[i : i + size] for i in range(0, len(sentences), size)]


def text_facts(sentences: list[list[str]], batch_size: int) -> dict:
    """How much of the work is repeated or padded: the figures depend on it."""
    groups = batches(sentences, batch_size)
    tokens = sum(map(len, sentences))
    steps = sum(max(map(len, group)) + 2 for group in groups)
    padded = sum(len(group) * (max(map(len, group)) + 2) for group in groups)
    real = tokens + 2 * len(sentences)
    unique = sum(len({token for sentence in group for token in sentence}) for group in groups)
    return {
        "sentences": len(sentences),
        "tokens": tokens,
        "batch_size": batch_size,
        "unique_share": round(unique / tokens, 3),
        "padding_share": round(1 - real / padded, 3),
        "live_rows_per_step": round(real / steps, 1),
    }


def options_of(model: str, **lstm) -> dict:
    """Content of the `options.json` of a model of `MODELS`; keyword arguments replace entries of its `lstm`."""
    if model == DEEP:
        return standard_options("small", **{"n_layers": 4, **lstm})
    if model != "bundled":
        return standard_options(model, **lstm)
    from elmo_fast import Options
    from elmo_fast.weights.sources import find_model

    content = Options.from_file(find_model("bundled").options_file).to_dict()
    return {**content, "lstm": {**content["lstm"], **lstm}}
