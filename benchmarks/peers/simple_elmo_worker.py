"""Embeds batches by simple_elmo on a current TensorFlow, for `simple_elmo.py`.

`python simple_elmo_worker.py CHECKOUT OPTIONS WEIGHTS BATCH_SIZE THREADS`. A line on stdin asks for a batch, whose
vectors go to a file where one is named, or for zero states. What simple_elmo prints goes to stderr.
"""

import importlib.util
import json
import os
import sys
import tempfile
import types

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="2")


def main(checkout: str, options_file: str, weight_file: str, batch_size: str, threads: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, checkout)
    if importlib.util.find_spec("smart_open") is None:  # it opens no compressed file here
        sys.modules["smart_open"] = types.SimpleNamespace(open=open)
    import numpy as np
    import tensorflow
    from simple_elmo import ElmoModel
    from simple_elmo.elmo import weight_layers

    old = tensorflow.compat.v1
    model = ElmoModel()
    model.logger.setLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:  # it takes a model as a directory
        for file, name in ((options_file, "options.json"), (weight_file, "model.hdf5")):
            os.symlink(os.path.abspath(file), os.path.join(folder, name))
        model.load(folder, max_batch_size=int(batch_size))
        config = old.ConfigProto(intra_op_parallelism_threads=int(threads), inter_op_parallelism_threads=int(threads))
        session = old.Session(config=config)
        with session.as_default():  # what `get_elmo_vectors` does for a session of its own
            model.elmo_sentence_input = weight_layers("input", model.sentence_embeddings_op, use_layers="all")
        session.run(initialize := old.global_variables_initializer())
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "reset" in question:
            session.run(initialize)
        else:
            batch = question["embed"]
            vectors = model.get_elmo_vectors(batch, warmup=False, layers="all", session=session)
            if "file" in question:
                np.savez(question["file"], *(found[:, : len(tokens)] for found, tokens in zip(vectors, batch)))
        print(json.dumps({"done": True}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
