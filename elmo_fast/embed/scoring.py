"""Log-probabilities and substitutes of texts, as lines: what the subcommands `score` and `substitutes` print.

Files are found before torch, whose import takes seconds, is imported.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, gathered, local_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.text.readers import Text, open_texts
from elmo_fast.weights.families import SOFTMAX_FILE
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import find_model

if TYPE_CHECKING:
    from elmo_fast.nn.softmax_head import SoftmaxHead

_LINE_ENDS = re.compile(r"[\r\n]+")


def load_head(model: str | os.PathLike, softmax_file: str | None, vocab_file: str | None, *,
              device: str | None = "cpu", **options) -> "SoftmaxHead":
    """A model with its softmax and vocabulary, from `softmax.hdf5` and `vocab.txt` beside its weights unless given.

    `model` as in `find_model`, `device` as in `load`, `options` are fields of `ModelOptions`. `FileNotFoundError` for a
    model without a softmax.
    """
    opening = gathered(ModelOptions, options)
    files = find_model(model)
    softmax_file = local_path(softmax_file or files.weight_file.parent / SOFTMAX_FILE)
    if not os.path.isfile(softmax_file):
        raise FileNotFoundError(f"softmax: expected a model with its softmax, found none at {softmax_file}: a model "
                                "that you train and write with `elmo-fast export --softmax` has it, the published "
                                "ones do not")
    vocab_file = vocab_file or files.vocab_file
    if vocab_file is None:
        raise ConfigurationError(f"vocab: expected vocab.txt beside the weights of {model}, or a vocabulary file, "
                                 "got none")
    files = replace(files, vocab_file=vocab_file)
    from elmo_fast.nn.bilm import BiLm
    from elmo_fast.nn.softmax_head import SoftmaxHead
    from elmo_fast.ops.device import available_device

    bilm = BiLm.from_model(files, opening).eval().to(available_device(device))
    return SoftmaxHead.from_files(bilm, softmax_file, vocab_file, opening.allow_nonfinite)


def score_file(input_file: str, tokens: bool, format: str | None = None, field: str | None = None,
               tokenizer: str = "whitespace", **head) -> Iterator[str]:
    """`score_lines` of the texts of a file as `open_texts` reads them; `head` are the arguments of `load_head`."""
    with open_texts(input_file, format=format, field=field, tokenizer=tokenizer, allow_blank=True) as texts:
        yield from stops.checked(score_lines(load_head(**head), texts, tokens))


def substitute_file(input_file: str, top: int, direction: str, words: list[str] | None, format: str | None = None,
                    field: str | None = None, tokenizer: str = "whitespace", **head) -> Iterator[str]:
    """`substitute_lines` of the texts of a file as `open_texts` reads them; `head` are the arguments of `load_head`."""
    with open_texts(input_file, format=format, field=field, tokenizer=tokenizer, allow_blank=True) as texts:
        yield from stops.checked(substitute_lines(load_head(**head), texts, top, direction, words))


def score_lines(head: "SoftmaxHead", texts: Iterable[Text], tokens: bool) -> Iterator[str]:
    """Lines of tab-separated columns: forward and backward natural log-probability of each sentence, and its text.

    With `tokens`, one line per token, then lines for `</S>` and `<S>`, and a blank line after each sentence. Line ends
    inside a text are written as spaces.
    """
    from elmo_fast.text.batching import groups_of

    for batch in groups_of(texts, DEFAULT_BATCH_SIZE):
        for text, score in zip(batch, head.score([text.tokens for text in batch])):
            if not tokens:
                yield f"{score.forward_total:.6f}\t{score.backward_total:.6f}\t{_LINE_ENDS.sub(' ', text.text)}"
                continue
            for token, forward, backward in zip(text.tokens, score.forward, score.backward):
                yield f"{forward:.6f}\t{backward:.6f}\t{token}"
            yield f"{score.end:.6f}\t\t</S>"
            yield f"\t{score.begin:.6f}\t<S>"
            yield ""


def substitute_lines(head: "SoftmaxHead", texts: Iterable[Text], k: int, direction: str,
                     words: list[str] | None) -> Iterator[str]:
    """Lines, each a JSON object for a token, or for a token in `words`: sentence, position, word and `substitutes`.

    Sentence and position count from 0, as in Python. Substitutes are pairs of a word and the natural log of its
    probability, the likeliest first.
    """
    for number, text in enumerate(texts):
        positions = [position for position, token in enumerate(text.tokens) if words is None or token in words]
        if not positions:
            continue
        for position, substitutes in zip(positions, head.substitutes_at(text.tokens, positions, k, direction)):
            pairs = [[substitute.word, round(substitute.log_probability, 6)] for substitute in substitutes]
            yield json.dumps({"sentence": number, "position": position, "word": text.tokens[position],
                              "substitutes": pairs}, ensure_ascii=False)
