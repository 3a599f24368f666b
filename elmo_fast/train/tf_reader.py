"""A program that reads a TensorFlow checkpoint, run by path in a process of its own: `python tf_reader.py PREFIX`.

It needs TensorFlow and NumPy, and nothing of this package: TensorFlow and Triton each bring a copy of LLVM, and a process
that loads both aborts. To every line of its input, a JSON string that names a variable, it answers with a line of JSON and
the variable's bytes; its first line has the shapes of all. An `error` takes the place of either.
"""

import json
import os
import sys


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    reader = _opened(answers)
    for line in sys.stdin if reader is not None else ():
        _answer(answers, reader, json.loads(line))


def _opened(answers):
    try:
        import tensorflow
    except ImportError as error:
        return _say(answers, missing=str(error))
    try:
        reader = tensorflow.train.load_checkpoint(sys.argv[1])
        _say(answers, shapes={name: list(shape) for name, shape in reader.get_variable_to_shape_map().items()})
        return reader
    except Exception as error:  # TensorFlow's errors have no common base but this
        return _say(answers, error=f"{type(error).__name__}: {error}")


def _answer(answers, reader, name: str) -> None:
    import numpy as np

    try:
        values = np.asarray(reader.get_tensor(name), order="C")
    except Exception as error:
        return _say(answers, error=f"{type(error).__name__}: {error}")
    if values.dtype.kind not in "fiub":
        return _say(answers, error=f"expected numbers, found {values.dtype}")
    _say(answers, dtype=values.dtype.str, shape=list(values.shape))
    answers.write(memoryview(values.reshape(-1)).cast("B"))
    answers.flush()


def _say(answers, **what) -> None:
    answers.write(json.dumps(what).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
