"""Runs bilm-tf's own trainer on a current TensorFlow, a few batches at a time, for `bench_train`.

Started with a Python that has TensorFlow 2: `python bilm_tf_worker.py BILM_TF SETTINGS.json`. bilm-tf's code is
imported unchanged from the checkout BILM_TF; TensorFlow's v1 interface stands in for the TensorFlow 1.2 it was written
for. A line on stdin is the number of batches to train; the answer is the seconds they took. After the last line, the
trained variables are written to the file that the settings name. What bilm-tf prints goes to stderr.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="2")


def main(checkout: str, settings_file: str) -> None:
    settings = json.loads(Path(settings_file).read_text(encoding="utf-8"))
    answers, sys.stdout = sys.stdout, sys.stderr
    tensorflow = as_version_1(settings["threads"])
    sys.path.insert(0, checkout)
    from bilm.data import BidirectionalLMDataset
    from bilm.training import load_vocab, train

    vocabulary = load_vocab(settings["vocabulary"], settings["options"]["char_cnn"]["max_characters_per_token"])
    data = BidirectionalLMDataset(settings["train"], vocabulary, test=False, shuffle_on_load=True)
    folder = settings["folder"]
    os.makedirs(folder, exist_ok=True)
    train({**settings["options"], "n_tokens_vocab": vocabulary.size}, ByTurns(data, answers), 1, folder, folder)
    save_variables(tensorflow, folder, settings["variables"])
    print(json.dumps({"done": True}), file=answers, flush=True)


def as_version_1(threads: int):
    """TensorFlow's v1 interface under the name that bilm-tf imports, with a limit on threads."""
    import tensorflow

    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    tensorflow.config.threading.set_inter_op_parallelism_threads(threads)
    old = tensorflow.compat.v1
    old.disable_v2_behavior()
    make_config = old.ConfigProto
    old.ConfigProto = lambda **given: make_config(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads, **given)
    sys.modules["tensorflow"] = old
    return old


class ByTurns:
    """A data set that hands out the batches of a turn on request, and prints how long the turn took."""

    def __init__(self, data, answers):
        self._data, self._answers = data, answers

    def iter_batches(self, batch_size, steps):
        batches = self._data.iter_batches(batch_size, steps)
        while True:
            print(json.dumps({"ready": True}), file=self._answers, flush=True)
            count = int(sys.stdin.readline())
            begin = time.perf_counter()
            for _ in range(count):
                yield next(batches)
            print(json.dumps({"seconds": time.perf_counter() - begin}), file=self._answers, flush=True)


def save_variables(tensorflow, folder: str, target: str) -> None:
    """The trained variables of the last checkpoint, by bilm-tf's names without `lm/`, as an .npz file."""
    import numpy as np

    reader = tensorflow.train.load_checkpoint(tensorflow.train.latest_checkpoint(folder))
    names = [name for name in reader.get_variable_to_shape_map()
             if name.startswith("lm/") and not name.endswith("/Adagrad")]
    np.savez(target, **{name.removeprefix("lm/"): reader.get_tensor(name) for name in names})


if __name__ == "__main__":
    main(*sys.argv[1:])
