"""Small corpora, configurations, models and runs for the tests of the trainer."""

import itertools
import json

import numpy as np

from elmo_fast.text.corpus import Order, make_vocabulary, read_shards
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train import checkpoint
from elmo_fast.train.config import TrainConfig
from elmo_fast.train.data import BatchStream
from elmo_fast.train.model import LanguageModel, initial_weights
from elmo_fast.train.run_files import read_log
from tests.support.files import run

WORDS = [f"{syllable}{ending}" for syllable in ("ka", "lo", "mi", "naïv", "po", "ru")
         for ending in ("", "ta", "né", "s", "x")]
TINY = {
    "lstm": {"dim": 12, "projection_dim": 5, "n_layers": 2, "use_skip_connections": True, "cell_clip": 0.3,
             "proj_clip": 0.1},
    "char_cnn": {"embedding": {"dim": 3}, "filters": [[1, 4], [2, 5], [3, 6]], "n_highway": 1, "n_characters": 261,
                 "max_characters_per_token": 12, "activation": "relu"},
    "batch_size": 3, "unroll_steps": 4, "n_negative_samples_batch": 7,
}
WORD_INPUT = {key: value for key, value in TINY.items() if key != "char_cnn"}
VOCABULARY = 28  # words of `write_corpus`
QUIET = {"quiet": True, "log_every": 3, "evaluate_batch_size": 5}


def with_lstm(content=TINY, **changes):
    """Options with some keys of the section `lstm` replaced."""
    return {**content, "lstm": {**content["lstm"], **changes}}


KINDS = {
    "characters": TINY,
    "words": WORD_INPUT,
    "one direction": {**TINY, "bidirectional": False},
    "one direction, even rows": {**TINY, "bidirectional": False, "batch_size": 4},
    "one direction, one row": {**WORD_INPUT, "bidirectional": False, "batch_size": 1},
    "one direction, one layer": {**with_lstm(WORD_INPUT, n_layers=1), "bidirectional": False},
    "full softmax": {**TINY, "sample_softmax": False},
    "shared table": {**WORD_INPUT, "share_embedding_softmax": True},
    "one layer": with_lstm(n_layers=1),
    "one layer of words": with_lstm(WORD_INPUT, n_layers=1),
    "three layers, no skip": with_lstm(n_layers=3, use_skip_connections=False),
    "no projection": with_lstm(dim=5),
    "tanh": {**TINY, "char_cnn": {**TINY["char_cnn"], "activation": "tanh", "n_highway": 2}},
}


def write_corpus(folder, shards=3, sentences=25, seed=0):
    """Write shards of random sentences, some empty, and their vocabulary; returns (glob, vocabulary file)."""
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        lines = [" ".join(generator.choice(WORDS, generator.integers(0, 9))) for _ in range(sentences)]
        (folder / f"part-{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    make_vocabulary(str(folder / "part-*.txt"), folder / "vocab.txt", min_count=2, max_size=VOCABULARY)
    return str(folder / "part-*.txt"), folder / "vocab.txt"


def make_config(content=None, words=VOCABULARY, **changes):
    """A configuration; `content` is TINY by default, `changes` replace keys of its top level."""
    return TrainConfig.from_dict({**(content or TINY), "n_tokens_vocab": words, **changes})


def model(config=None, seed=0, scale=2.0):
    """A language model with initial weights, some enlarged so that clips and filters fire, biases not zero."""
    config = config or make_config()
    generator = np.random.default_rng(seed)
    weights = {name: (value * (scale if "LSTM" in name else 20 if "W_cnn" in name else 1)
                      + generator.normal(0, 0.2, value.shape) * (value.ndim == 1)).astype(np.float32)
               for name, value in initial_weights(config, seed).items()}
    return LanguageModel(config, weights)


def write_batches(model, folder, count=3):
    """The first batches of a corpus written into `folder`, for a language model."""
    pattern, vocabulary = write_corpus(folder)
    training = model.config.training
    numbering = model.numbering(Vocabulary(vocabulary, validate_file=True),
                                training.n_negative_samples_batch if training.sample_softmax else None)
    orders = [Order(5, False), Order(5, True)][: model.directions]
    stream = BatchStream(read_shards(pattern, "train"), numbering, orders, training.batch_size, training.unroll_steps)
    return list(itertools.islice(stream, count))


def update(model, updater, batch, drop=None):
    """Train on a batch from zero states; returns its losses and the gradient's norm."""
    training = model.config.training
    losses, _, used = model.losses(batch, model.zero_state(training.batch_size), drop)
    (losses.mean() * training.unroll_steps).backward()
    return losses.detach().numpy(), float(updater.step(used, training.learning_rate))


def write_options(path, content=None, **changes):
    """Write an options file, as `make_config`; returns its path."""
    path.write_text(json.dumps({**(content or TINY), **changes}), encoding="utf-8")
    return path


def corpus_arguments(folder):
    """Arguments of a small run: text, held-out text, vocabulary and options."""
    pattern, vocabulary = write_corpus(folder / "text")
    heldout, _ = write_corpus(folder / "heldout", shards=1, seed=9)
    return {"train": [pattern], "heldout": [heldout], "vocab": str(vocabulary),
            "options_file": str(write_options(folder / "options.json"))}


def command_arguments(corpus, tmp_path, **changes):
    """The command's arguments for a new run, some of them replaced or left out (None)."""
    flags = {"train": corpus["train"][0], "vocab": corpus["vocab"], "options-file": corpus["options_file"], **changes}
    return ["train", tmp_path / "new", "--quiet", *(part for name, value in flags.items() if value is not None
                                                   for part in (f"--{name}", value))]


def check_refusals(capsys, *rows):
    """Check that the command refuses the arguments of every row in one line, which contains the row's message."""
    for arguments, message in rows:
        status, _, errors = run(capsys, *arguments)
        assert status == 2 and message in errors and errors.count("\n") == 1, errors


def final(folder):
    """The last checkpoint, and the log without the speeds."""
    log = [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in read_log(folder)]
    return checkpoint.read(checkpoint.in_order(folder)[-1]), log
