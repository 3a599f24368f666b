"""Computes the perplexity of a language model on a text by bilm-tf's protocol, many steps at a time."""

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from tqdm import tqdm

from elmo_fast.files import stops
from elmo_fast.ops.device import available_device
from elmo_fast.ops.numerics import full_precision, numerics
from elmo_fast.text.batching import groups_of
from elmo_fast.text.corpus import Order, Sentences, Shard, read_shards
from elmo_fast.text.tokenizers import Tokenizer
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.checkpoint import load_language_model
from elmo_fast.train.data import Batch
from elmo_fast.train.model import LanguageModel, chunked_full_cross_entropy

STEPS = 16  # per call of the model


class Perplexity(NamedTuple):
    """Perplexities over `batches` of `rows` tokens: `total` is bilm-tf's figure, `by_direction` one per direction."""

    total: float
    by_direction: tuple[float, ...]
    batches: int
    rows: int

    def __str__(self) -> str:
        values = zip(("forward", "backward"), self.by_direction)
        return (f"perplexity {self.total:.4f} ({', '.join(f'{name} {value:.4f}' for name, value in values)}; "
                f"{self.batches} batches of {self.rows} tokens)")


def perplexity(model: LanguageModel, shards: Sequence[Shard], vocabulary: Vocabulary, batch_size: int = 256,
               progress: bool = False, defer_stops: bool = False) -> Perplexity:
    """Return exp of the mean of both directions' mean losses over batches of a single step.

    As bilm-tf's `test`: full softmax, no dropout, `batch_size` rows, states that begin as zeros and are carried from
    batch to batch; the last batch is dropped if a row has no token left. Files are read in the order given.
    `ValueError` if there are fewer sentences than rows. With `defer_stops` a stop takes effect after the end.
    """
    sentences = sum(shard.sentences for shard in shards)
    if sentences < batch_size:
        raise ValueError(f"batch_size: expected at most the {sentences} sentences of the held-out text, got "
                         f"{batch_size}")
    readers = [_steps(Sentences(shards, Order(reverse=reverse)), batch_size)
               for reverse in (False, True)[: model.directions]]
    numbering = model.numbering(vocabulary)

    def batches() -> Iterator[Batch]:
        with tqdm(total=sum(shard.predictions for shard in shards), unit="tok", unit_scale=True, disable=not progress,
                  desc="perplexity", leave=False) as bar:
            for steps in zip(*(groups_of(reader, STEPS) for reader in readers)):
                if not defer_stops:
                    stops.check()
                texts = [tuple(zip(*chain.from_iterable(zip(*step)))) for step in steps]  # row after row
                yield numbering.batch(texts, batch_size, torch.zeros(0))
                bar.update(len(texts[0][0]))

    return perplexity_of_batches(model, batches(), batch_size)


def _steps(sentences: Sentences, rows: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield the (input, target) pairs of every row, step by step; a row whose sentence has ended takes the next one."""
    return zip(*(chain.from_iterable(pairwise(sentence) for _, sentence in sentences) for _ in range(rows)))


@torch.no_grad()
def perplexity_of_batches(model: LanguageModel, batches: Iterable[Batch], batch_size: int) -> Perplexity:
    """As `perplexity`, for at least one batch; batches have `batch_size` rows and any number of steps."""
    device, state = model.softmax_b.device, model.zero_state(batch_size)
    losses = []  # mean losses of steps: float64 [D, steps] per batch
    for batch in batches:
        steps = batch.targets.shape[1] // batch_size
        with numerics(model.precision, device):
            tops, state = model.outputs(batch.tokens.to(device), batch.rows, steps, state)
        tops = model.by_direction(tops, steps, batch.rows.shape[1])
        losses.append(torch.stack([
            chunked_full_cross_entropy(full_precision(top), model.softmax_w, model.softmax_b, targets.to(device))
            .double().view(steps, batch_size).mean(1).cpu() for top, targets in zip(tops, batch.targets)]))
    by_batch = torch.cat(losses, dim=1)
    means = by_batch.mean(1)
    return Perplexity(_exp(float(means.mean())), tuple(map(_exp, means.tolist())), by_batch.shape[1], batch_size)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)  # exp would overflow


def perplexity_of(model: str | os.PathLike, text: Sequence[str] | str, *, batch_size: int = 256, device: str = "cpu",
                  progress: bool = False, format: str | None = None, field: str | None = None,
                  tokenizer: str | Tokenizer = "whitespace", **reading) -> Perplexity:
    """Return the perplexity of a run (`checkpoint`, else its best, else its last) or of an exported model with softmax.

    `format`, `field` and `tokenizer` are those of `open_texts`, `reading` the arguments of `load_language_model`.
    """
    target_device = available_device(device)
    language_model, vocabulary = load_language_model(model, **reading)
    with tempfile.TemporaryDirectory(prefix="elmo-fast-") as copies:
        shards = read_shards(text, "text", copies, format=format, field=field, tokenizer=tokenizer)
        return perplexity(language_model.to(target_device), shards, vocabulary, batch_size, progress)
