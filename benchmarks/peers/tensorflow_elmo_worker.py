"""Embeds batches by bilm-tf or simple_elmo on a current TensorFlow, for `tensorflow_elmo.py`.

`python tensorflow_elmo_worker.py PEER CHECKOUT OPTIONS WEIGHTS BATCH_SIZE THREADS`. A line on stdin asks for a batch,
whose vectors go to a file where one is named, or for zero states. What the peer prints goes to stderr.

With Keras 3 TensorFlow has no LSTM cells of its own. TF_USE_LEGACY_KERAS lets its v1 interface take those of tf_keras.
"""

import importlib.util
import json
import os
import sys
import tempfile
import types

from bilm_tf_worker import as_version_1  # sets the environment of TensorFlow


def main(peer: str, checkout: str, options_file: str, weight_file: str, batch_size: str, threads: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, checkout)
    embed, reset = {"bilm-tf": bilm_tf, "simple_elmo": simple_elmo}[peer](
        os.path.abspath(options_file), os.path.abspath(weight_file), int(batch_size), int(threads))
    reset()
    import numpy as np
    import tensorflow

    print(json.dumps({"ready": tensorflow.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "reset" in question:
            reset()
        else:
            batch = question["embed"]
            vectors = embed(batch)  # [sentences, layers, tokens, 2 P]
            if "file" in question:
                np.savez(question["file"], *(found[:, : len(tokens)] for found, tokens in zip(vectors, batch)))
        print(json.dumps({"done": True}), file=answers, flush=True)


def bilm_tf(options_file: str, weight_file: str, batch_size: int, threads: int):
    """Functions that embed a batch and that zero the states."""
    old = as_version_1(threads)
    from bilm import Batcher, BidirectionalLanguageModel

    with open(options_file, encoding="utf-8") as file:
        characters = json.load(file)["char_cnn"]["max_characters_per_token"]
    with tempfile.TemporaryDirectory() as folder:  # it takes a vocabulary, whose words it would only cache
        words = os.path.join(folder, "words")
        with open(words, "w", encoding="utf-8") as file:
            file.write("<S>\n</S>\n<UNK>\n")
        batcher = Batcher(words, characters)
    ids = old.placeholder("int32", (None, None, characters))
    vectors = BidirectionalLanguageModel(options_file, weight_file, max_batch_size=batch_size)(ids)["lm_embeddings"]
    session = old.Session(config=old.ConfigProto())
    initialize = old.global_variables_initializer()
    return (lambda batch: session.run(vectors, {ids: batcher.batch_sentences(batch)}),
            lambda: session.run(initialize))


def simple_elmo(options_file: str, weight_file: str, batch_size: int, threads: int):
    """Functions that embed a batch and that zero the states."""
    if importlib.util.find_spec("smart_open") is None:  # it opens no compressed file here
        sys.modules["smart_open"] = types.SimpleNamespace(open=open)
    import tensorflow
    from simple_elmo import ElmoModel
    from simple_elmo.elmo import weight_layers

    old = tensorflow.compat.v1
    model = ElmoModel()
    model.logger.setLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:  # it takes a model as a directory
        for file, name in ((options_file, "options.json"), (weight_file, "model.hdf5")):
            os.symlink(file, os.path.join(folder, name))
        model.load(folder, max_batch_size=batch_size)
    config = old.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    session = old.Session(config=config)
    with session.as_default():  # what `get_elmo_vectors` does for a session of its own
        model.elmo_sentence_input = weight_layers("input", model.sentence_embeddings_op, use_layers="all")
    initialize = old.global_variables_initializer()
    return (lambda batch: model.get_elmo_vectors(batch, warmup=False, layers="all", session=session),
            lambda: session.run(initialize))


if __name__ == "__main__":
    main(*sys.argv[1:])
