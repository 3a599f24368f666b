"""Writes a trained or fine-tuned model as the files that this engine, AllenNLP and bilm-tf load."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import atomic_directory
from elmo_fast.files.tensors import described, is_plain, load_tensors
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.softmax_head import SOFTMAX
from elmo_fast.train import checkpoint as runs
from elmo_fast.train.run_files import RUN_FILE, in_order
from elmo_fast.weights.datasets import (
    check_finite,
    expected_shapes,
    lstm_name,
    with_vocabulary,
    write_model,
    write_weights,
)
from elmo_fast.weights.families import SOFTMAX_FILE
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import vocabulary_in

_MARKERS = ("_token_embedder._char_embedding_weights", "_token_embedder.embedding")
# AllenNLP's tensors of the projections that keep the size, which a model may lack, and their datasets.
_OPTIONAL = {"_token_embedder._projection.weight": "CNN_proj/W_proj",
             "_elmo_lstm.forward_layer_0.state_projection.weight": lstm_name(0, 0, "W_P_0")}


def export_run(run: str | os.PathLike, output: str | os.PathLike, *, softmax: bool = False, float16: bool = False,
               mantissa_bits: int | None = None, **reading) -> None:
    """Write a run's model into the directory `output`, atomically: options with 262 characters, weights, vocabulary.

    With `softmax`, the softmax's W and b go into a separate file. `mantissa_bits` as in `write_weights`. A model of one
    direction is refused. `reading` are the arguments of `weights_of_run`.
    """
    run, storage = check_path("run", run), _storage(float16, mantissa_bits)
    _check_is_no_run(output)
    with atomic_directory(output, last=runs.OPTIONS_FILE) as folder:
        config, weights = runs.weights_of_run(run, **reading)
        if not config.bidirectional:
            raise ConfigurationError(f"run {run}: expected a model of two directions, since the file format, AllenNLP "
                                     "and bilm-tf support no other; got a forward model")
        encoder = {name: values for name, values in weights.items() if name not in SOFTMAX}
        write_model(folder, {"bidirectional": True, **config.model.to_dict()}, encoder, **storage)
        if softmax:
            write_weights(folder / SOFTMAX_FILE, {name: weights[name] for name in SOFTMAX}, **storage)
        runs.copy_vocabulary(os.fspath(Path(run) / runs.VOCABULARY_FILE), folder)


def _check_is_no_run(output: str | os.PathLike) -> None:
    """Raise `ConfigurationError` for the directory of a training run, whose options the model's would replace."""
    output = check_path("output", output)
    if os.path.exists(os.path.join(output, RUN_FILE)) or in_order(output):
        raise ConfigurationError(f"output: expected a directory other than that of a training run, got {output}")


def export_module(module: torch.nn.Module, output: str | os.PathLike, float16: bool = False,
                  mantissa_bits: int | None = None) -> None:
    """Write the biLM of an `Elmo`, or a `BiLm`, into the directory `output`; `mantissa_bits` as in `write_weights`."""
    storage = _storage(float16, mantissa_bits)
    bilms = [submodule for submodule in module.modules() if isinstance(submodule, BiLm)]
    if len(bilms) != 1:
        raise ConfigurationError(f"module: expected an Elmo or a BiLm, or a module around one, got {len(bilms)} of "
                                 f"them in {type(module).__name__}")
    _check_is_no_run(output)
    with atomic_directory(output, last=runs.OPTIONS_FILE) as folder:
        options = bilms[0].options
        write_model(folder, options.to_dict(), bilms[0].weights(), options.vocabulary, **storage)


def export_state_dict(path: str | os.PathLike, options_file: str | os.PathLike | None, output: str | os.PathLike,
                      float16: bool = False, mantissa_bits: int | None = None, allow_nonfinite: bool = False) -> None:
    """As `export_module`, from a file with the `state_dict` of an `Elmo` or a `BiLm` under any prefix.

    `options_file` belongs to the model that was fine-tuned; a model that reads words has its vocabulary beside it.
    AllenNLP's checkpoints are accepted too. NaN and infinities are refused unless `allow_nonfinite`.
    """
    if options_file is None:
        raise ConfigurationError("--options-file: expected the options.json of the model that was fine-tuned, got none")
    options = with_vocabulary(Options.from_file(options_file), vocabulary_in(Path(options_file).parent))
    content = load_tensors(path, "--from-module", "what torch.save(module.state_dict(), ...) writes")
    if not isinstance(content, dict):
        raise ConfigurationError(f"--from-module {path}: expected a state_dict, got {type(content).__name__}")
    tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    prefixes = [name.removesuffix(marker) for name in tensors for marker in _MARKERS if name.endswith(marker)]
    if len(prefixes) != 1:
        raise ConfigurationError(f"--from-module {path}: expected the state_dict of a module with one biLM in it, "
                                 f"found {len(prefixes)} among {len(tensors)} tensors")
    bilm_prefixes = tuple(prefixes[0] + name for name in ("_token_embedder.", "_elmo_lstm."))
    state = {name.removeprefix(prefixes[0]): value for name, value in tensors.items() if name.startswith(bilm_prefixes)}
    for name, value in state.items():
        if not is_plain(value):
            raise ConfigurationError(f"--from-module {path}: {name:.80}: expected floating-point numbers in memory, "
                                     f"found {described(value)}")
    optional = [dataset for name, dataset in _OPTIONAL.items() if name in state]
    shapes = expected_shapes(options, optional)
    bilm = BiLm(options, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    try:
        bilm.load_state_dict(state)
    except RuntimeError as error:
        raise ConfigurationError(f"--from-module {path}: expected the weights of {options_file}, got others: "
                                 f"{error}") from error
    if not allow_nonfinite:
        for name, values in bilm.weights().items():
            check_finite(f"--from-module {path}: {name}", values)
    export_module(bilm, output, float16, mantissa_bits)


def _storage(float16: bool, mantissa_bits: int | None) -> dict[str, Any]:
    """Arguments of `write_weights`."""
    return {"dtype": np.float16 if float16 else np.float32, "mantissa_bits": mantissa_bits}
