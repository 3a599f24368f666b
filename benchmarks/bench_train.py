"""Training: tokens per second of ours and of bilm-tf's own trainer, and the perplexity of both.

Same text, vocabulary, sizes, batches and steps; by turns of some steps in one run, each side on the same number of
threads. After the last step the held-out perplexity of both is computed by `elmo_fast.train.evaluate` (bilm-tf's
protocol, full softmax). bilm-tf runs from a checkout that you name, in a Python with TensorFlow 2 (peers/bilm_tf.py).
A token is one position of a batch: batch size times unroll steps a step, as bilm-tf counts.

    python -m benchmarks.bench_train --bilm-tf CHECKOUT --tf-python PYTHON
    python -m benchmarks.bench_train --model tiny --steps 20 --turn 5            # a dry run of ours alone
"""

import argparse
import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import common
from benchmarks.peers.bilm_tf import BilmTf
from elmo_fast.environment import cores
from elmo_fast.text.corpus import Shard, make_vocabulary, read_shards
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.config import TrainConfig
from elmo_fast.train.evaluate import perplexity
from elmo_fast.train.loop import Trainer
from elmo_fast.train.model import LanguageModel, initial_weights
from elmo_fast.train.optimizer import Replicas

# dim, projection, filters, highway layers, batch, negatives, words; `issue` is what the 3x is asked for
SIZES = {
    "issue": (512, 64, [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512]], 1, 64, 2048, 20_000),
    "tiny": (32, 16, [[1, 4], [2, 8], [3, 12]], 1, 8, 64, 500),
}
UNROLL = 20


def options(size: str, bilm_tf: bool = False) -> dict:
    """The options of a size, in bilm-tf's keys; bilm-tf trains with 261 characters and calls an export 262."""
    dim, projection, filters, highways, batch, negatives, _ = SIZES[size]
    return {
        "bidirectional": True,
        "lstm": {"dim": dim, "projection_dim": projection, "n_layers": 2, "use_skip_connections": True, "cell_clip": 3,
                 "proj_clip": 3},
        "char_cnn": {"activation": "relu", "embedding": {"dim": 16}, "filters": filters, "n_highway": highways,
                     "max_characters_per_token": 50, "n_characters": 261 if bilm_tf else 262},
        "dropout": 0.1, "all_clip_norm_val": 10.0, "batch_size": batch, "unroll_steps": UNROLL,
        "n_negative_samples_batch": negatives, "n_epochs": 1,
    }


@dataclass(frozen=True)
class Corpus:
    """Files of both sides: text to learn from, text to be judged on, and the vocabulary."""

    train: str
    shards: list[Shard]
    heldout: list[Shard]
    vocabulary_file: Path
    vocabulary: Vocabulary

    @classmethod
    def read(cls, train: str, heldout: str, words: int, folder: Path) -> "Corpus":
        path = folder / "vocab.txt"
        make_vocabulary(train, path, max_size=words)
        return cls(train, read_shards(train, "--train"), read_shards(heldout, "--heldout"), path,
                   Vocabulary(path, True))


class Ours:
    """elmo_fast's trainer."""

    def __init__(self, model: str, corpus: Corpus, seed: int, device: str):
        config = TrainConfig.from_dict({**options(model), "n_tokens_vocab": corpus.vocabulary.size, "seed": seed})
        self.model = LanguageModel(config, initial_weights(config, seed)).to(device)
        self._trainer = Trainer(self.model, corpus.shards, corpus.vocabulary, Replicas(torch.device(device)))

    def turn(self, steps: int) -> float:
        """Train some steps; returns the seconds."""
        begin = time.perf_counter()
        for _ in range(steps):
            self._trainer.step()
        if self._trainer.replicas.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin


def peer(arguments: argparse.Namespace, corpus: Corpus, folder: Path) -> BilmTf:
    """bilm-tf's trainer, which has tokens for all steps."""
    count = arguments.steps * SIZES[arguments.model][4] * UNROLL
    return BilmTf(arguments.tf_python, arguments.bilm_tf, {**options(arguments.model, bilm_tf=True),
                                                           "n_train_tokens": count},
                  corpus.train, corpus.vocabulary_file, folder)


def by_turns(sides: dict, steps: int, turn: int) -> dict[str, list[float]]:
    """Seconds of every turn of both sides; they change places in every turn."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for first in range(0, steps, turn):
        for name in order:
            seconds[name].append(sides[name].turn(min(turn, steps - first)))
        order.reverse()
    return seconds


def judged(side: Ours | BilmTf, corpus: Corpus, arguments: argparse.Namespace):
    """The held-out perplexity of a side as trained."""
    if isinstance(side, Ours):
        model = side.model
    else:
        config = TrainConfig.from_dict({**options(arguments.model), "n_tokens_vocab": corpus.vocabulary.size})
        model = LanguageModel(config, side.weights())
    return perplexity(model, corpus.heldout, corpus.vocabulary, arguments.heldout_rows)


def rows_of(sides: dict, corpus: Corpus, seconds: dict[str, list[float]], arguments: argparse.Namespace) -> list[dict]:
    """A row a side: speed after the warm-up turns, ratio to bilm-tf (median of a turn's pair), and perplexity."""
    tokens = SIZES[arguments.model][4] * UNROLL
    timed = {name: common.Timing.of(of_side[arguments.warmup : arguments.steps // arguments.turn])
             for name, of_side in seconds.items()}
    rows = []
    for name, side in sides.items():
        speeds = common.Timing.of([arguments.turn * tokens / time for time in timed[name].samples])
        found = judged(side, corpus, arguments)
        ratio = timed[name].times_as_fast_as(timed["bilm-tf"]) if "bilm-tf" in timed else None
        rows.append(common.row(speeds, "tokens/s", workload="training", model=arguments.model,
                               way=f"batches of {SIZES[arguments.model][4]} rows of {UNROLL} steps", variant=name,
                               times_as_fast=ratio, tokens=arguments.steps * tokens, heldout_perplexity=found.total,
                               by_direction=list(found.by_direction)))
        print(f"{name}: held-out {found}")
    return rows


def run(arguments: argparse.Namespace) -> dict:
    """The content of the results file."""
    if arguments.steps // arguments.turn <= arguments.warmup:
        raise ValueError(f"--steps: expected more than {arguments.turn * arguments.warmup} (the warm-up), got "
                         f"{arguments.steps}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        corpus = Corpus.read(arguments.train, arguments.heldout, SIZES[arguments.model][6], folder)
        sides: dict = {"elmo-fast": Ours(arguments.model, corpus, arguments.seed, arguments.device)}
        if arguments.bilm_tf:
            sides["bilm-tf"] = stack.enter_context(peer(arguments, corpus, folder))
        results = rows_of(sides, corpus, by_turns(sides, arguments.steps, arguments.turn), arguments)
        facts = {"tokens": sum(shard.tokens for shard in corpus.shards), "files": len(corpus.shards),
                 "heldout_tokens": sum(shard.tokens for shard in corpus.heldout), "words": corpus.vocabulary.size}
    settings = {"model": arguments.model, "device": arguments.device, "options": options(arguments.model),
                "steps": arguments.steps, "turn": arguments.turn, "warmup_turns": arguments.warmup,
                "threads": torch.get_num_threads(), "seed": arguments.seed, "times_as_fast_as": "bilm-tf",
                "text": facts}
    return common.document("train", settings, results)


def main() -> int:
    shared = common.shared_folder() / "corpus"
    parser = common.make_parser(
        __doc__, "train-MODEL.json", ("--steps", 1000, "steps of each"), ("--turn", 25, "steps a turn"),
        ("--warmup", 1, "turns that do not count"), ("--heldout-rows", 256, "rows of the held-out text, as bilm-tf"))
    add = parser.add_argument
    add("--model", choices=SIZES, default="issue", help="(default: %(default)s)")
    add("--train", default=str(shared / "train" / "*.txt"), metavar="GLOB")
    add("--heldout", default=str(shared / "heldout.txt"), metavar="GLOB")
    add("--seed", type=int, default=0)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="of ours (default: cpu)")
    add("--bilm-tf", metavar="CHECKOUT", help="bilm-tf's source, unchanged")
    add("--tf-python", metavar="PYTHON", default=sys.executable, help="a Python with TensorFlow 2 and tf_keras")
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or cores()
    return common.run_and_write(arguments, run, f"train-{arguments.model}.json", common.table)


if __name__ == "__main__":
    sys.exit(main())
