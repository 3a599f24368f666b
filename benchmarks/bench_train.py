"""Training on the CPU: tokens per second of ours and of bilm-tf's own trainer, and the perplexity of both.

Same text, vocabulary, sizes, batches and steps; by turns of some steps in one run, each side on the same number of
threads. After the last step the held-out perplexity of both is computed by `elmo_fast.train.evaluate` (bilm-tf's
protocol, full softmax). bilm-tf runs from a checkout that you name, in a Python with TensorFlow 2 (bilm_tf_worker.py).
A token is one position of a batch: batch size times unroll steps a step, as bilm-tf counts.

    python -m benchmarks.bench_train --bilm-tf CHECKOUT --tf-python PYTHON
    python -m benchmarks.bench_train --size tiny --steps 20 --turn 5            # a dry run of ours alone
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks import common
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.config import TrainConfig
from elmo_fast.train.corpus import Shard, make_vocabulary, read_shards
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

    def __init__(self, size: str, corpus: Corpus, seed: int):
        self._corpus = corpus
        config = TrainConfig.from_dict({**options(size), "n_tokens_vocab": corpus.vocabulary.size, "seed": seed})
        self.model = LanguageModel(config, initial_weights(config, seed))
        self._trainer = Trainer(self.model, corpus.shards, corpus.vocabulary, Replicas(torch.device("cpu")))

    def turn(self, steps: int) -> float:
        """Train some steps; returns the seconds."""
        begin = time.perf_counter()
        for _ in range(steps):
            self._trainer.step()
        return time.perf_counter() - begin

    def finish(self) -> LanguageModel:
        return self.model


class BilmTf:
    """bilm-tf's trainer in a process of its own, which waits while the other side has its turn."""

    def __init__(self, size: str, corpus: Corpus, seed: int, python: str, checkout: str, steps: int, folder: Path):
        self._variables = folder / "variables.npz"
        self._config = TrainConfig.from_dict({**options(size), "n_tokens_vocab": corpus.vocabulary.size})
        batch = self._config.training.batch_size
        settings = {
            "options": {**options(size, bilm_tf=True), "n_train_tokens": steps * batch * UNROLL}, "train": corpus.train,
            "vocabulary": str(corpus.vocabulary_file), "folder": str(folder / "bilm-tf"),
            "threads": torch.get_num_threads(), "variables": str(self._variables),
        }
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        worker = Path(__file__).with_name("bilm_tf_worker.py")
        # Their code calls no seed: the order of their text differs from run to run.
        self._log = open(folder / "bilm-tf.log", "w", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen([python, str(worker), checkout, str(folder / "settings.json")], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self._answer("ready")

    def turn(self, steps: int) -> float:
        """Train some steps; returns the seconds."""
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return self._answer("seconds", "done")

    def _answer(self, *wanted: str) -> float:
        while True:
            line = self._process.stdout.readline()
            if not line:
                self._log.flush()
                tail = Path(self._log.name).read_text(encoding="utf-8")[-2000:]
                raise RuntimeError(f"bilm-tf: expected it to train, but its process ended:\n{tail}")
            answer = json.loads(line)
            found = next((name for name in wanted if name in answer), None)
            if found:
                return answer[found]

    def finish(self) -> LanguageModel:
        """The model as trained, in ours."""
        self._process.stdin.close()
        self._process.wait(timeout=600)
        with np.load(self._variables) as found:
            weights = {ours_name(name): found[name] for name in found.files}
        return LanguageModel(self._config, weights)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def ours_name(name: str) -> str:
    """A bilm-tf variable as the dataset that its dump calls it: RNN_0/rnn/multi_rnn_cell/cell_1/lstm_cell/kernel."""
    if not name.startswith("RNN_"):
        return name
    direction, _, _, cell, _, *leaf = name.split("/")
    last = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}["/".join(leaf)]
    return f"{direction}/RNN/MultiRNNCell/Cell{cell.removeprefix('cell_')}/LSTMCell/{last}"


def by_turns(sides: dict, steps: int, turn: int) -> dict[str, list[float]]:
    """Seconds of every turn of both sides; they change places in every turn."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for first in range(0, steps, turn):
        for name in order:
            seconds[name].append(sides[name].turn(min(turn, steps - first)))
        order.reverse()
    return seconds


def results(sides: dict, corpus: Corpus, seconds: dict[str, list[float]], arguments: argparse.Namespace) -> dict:
    """Speeds after the warm-up turns, the median ratio of a turn's pair, and both perplexities."""
    batch, steps = SIZES[arguments.size][4], arguments.turn
    found: dict = {}
    complete = arguments.steps // steps
    for name, side in sides.items():
        speeds = [steps * batch * UNROLL / time for time in seconds[name][arguments.warmup : complete]]
        judged = perplexity(side.finish(), corpus.heldout, corpus.vocabulary, arguments.heldout_rows)
        found[name] = {"tokens_per_second": float(np.median(speeds)), "p20": float(np.percentile(speeds, 20)),
                       "p80": float(np.percentile(speeds, 80)), "tokens": arguments.steps * batch * UNROLL,
                       "heldout_perplexity": judged.total, "by_direction": list(judged.by_direction)}
        print(f"{name}: {found[name]['tokens_per_second']:,.0f} tokens/s, held-out {judged}")
    if len(sides) == 2:
        pairs = zip(*(seconds[name][arguments.warmup : complete] for name in ("bilm-tf", "elmo-fast")))
        found["times_as_fast"] = float(np.median([theirs / ours for theirs, ours in pairs]))
        print(f"elmo-fast is {found['times_as_fast']:.2f} times as fast")
    return found


def parse(arguments=None) -> argparse.Namespace:
    shared = common.shared_folder() / "corpus"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="issue")
    parser.add_argument("--steps", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--turn", type=int, default=25, help="steps a turn (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=1, help="turns that do not count (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: every core)")
    parser.add_argument("--train", default=str(shared / "train" / "*.txt"), metavar="GLOB")
    parser.add_argument("--heldout", default=str(shared / "heldout.txt"), metavar="GLOB")
    parser.add_argument("--heldout-rows", type=int, default=256, help="(default: %(default)s, as bilm-tf)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bilm-tf", metavar="CHECKOUT", help="bilm-tf's source, unchanged")
    parser.add_argument("--tf-python", metavar="PYTHON", default=sys.executable, help="a Python with TensorFlow 2")
    parser.add_argument("--output", type=Path, help="(default: benchmarks/results/cpu/train-SIZE.json)")
    return parser.parse_args(arguments)


def main(arguments=None) -> dict:
    parsed = parse(arguments)
    if parsed.steps // parsed.turn <= parsed.warmup:
        raise ValueError(f"--steps: expected more than {parsed.turn * parsed.warmup} (the warm-up), got {parsed.steps}")
    torch.set_num_threads(parsed.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = Corpus.read(parsed.train, parsed.heldout, SIZES[parsed.size][6], folder)
        sides: dict = {"elmo-fast": Ours(parsed.size, corpus, parsed.seed)}
        theirs = None
        try:
            if parsed.bilm_tf:
                theirs = BilmTf(parsed.size, corpus, parsed.seed, parsed.tf_python, parsed.bilm_tf, parsed.steps,
                                folder)
                sides["bilm-tf"] = theirs
            seconds = by_turns(sides, parsed.steps, parsed.turn)
            found = results(sides, corpus, seconds, parsed)
        finally:
            if theirs is not None:
                theirs.close()
        facts = {"tokens": sum(shard.tokens for shard in corpus.shards), "files": len(corpus.shards),
                 "heldout_tokens": sum(shard.tokens for shard in corpus.heldout), "words": corpus.vocabulary.size}
    settings = {"size": parsed.size, "options": options(parsed.size), "steps": parsed.steps, "turn": parsed.turn,
                "warmup_turns": parsed.warmup, "threads": parsed.threads, "seed": parsed.seed, "text": facts}
    target = parsed.output or common.RESULTS / "cpu" / f"train-{parsed.size}.json"
    common.write_json(target, common.document("train", settings, common.rounded(found)))
    return found


if __name__ == "__main__":
    main()
