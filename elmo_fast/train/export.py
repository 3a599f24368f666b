"""Writes a trained or fine-tuned model as the files that this engine, AllenNLP and bilm-tf load."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmo_fast.arguments import check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import atomic_directory
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.softmax_head import SOFTMAX
from elmo_fast.train import checkpoint as runs
from elmo_fast.train.run_files import RUN_FILE, in_order
from elmo_fast.weights.datasets import SAFETENSORS_FILE, WEIGHTS_FILE, with_vocabulary, write_model, write_weights
from elmo_fast.weights.families import SOFTMAX_FILE
from elmo_fast.weights.families.allennlp import read_state_dict
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import vocabulary_in


def export_run(run: str | os.PathLike, output: str | os.PathLike, *, softmax: bool = False, float16: bool = False,
               mantissa_bits: int | None = None, safetensors: bool = False, **reading) -> None:
    """Write a run's model into the directory `output`, atomically: options with 262 characters, weights, vocabulary.

    With `softmax`, the softmax's W and b go into a separate HDF5 file. `mantissa_bits` as in `write_weights`; with
    `safetensors` the weights are not HDF5. A model of one direction is refused. `reading` are the arguments of
    `weights_of_run`.
    """
    run, storage = check_path("run", run), _storage(float16, mantissa_bits)
    _check_is_no_run(output)
    with atomic_directory(output, last=runs.OPTIONS_FILE) as folder:
        config, weights = runs.weights_of_run(run, **reading)
        if not config.bidirectional:
            raise ConfigurationError(f"run {run}: expected a model of two directions, since the file format, AllenNLP "
                                     "and bilm-tf support no other; got a forward model")
        encoder = {name: values for name, values in weights.items() if name not in SOFTMAX}
        write_model(folder, {"bidirectional": True, **config.model.to_dict()}, encoder, None, _file(safetensors),
                    **storage)
        if softmax:
            write_weights(folder / SOFTMAX_FILE, {name: weights[name] for name in SOFTMAX}, **storage)
        runs.copy_vocabulary(os.fspath(Path(run) / runs.VOCABULARY_FILE), folder)


def _check_is_no_run(output: str | os.PathLike) -> None:
    """Raise `ConfigurationError` for the directory of a training run, whose options the model's would replace."""
    output = check_path("output", output)
    if os.path.exists(os.path.join(output, RUN_FILE)) or in_order(output):
        raise ConfigurationError(f"output: expected a directory other than that of a training run, got {output}")


def export_module(module: torch.nn.Module, output: str | os.PathLike, float16: bool = False,
                  mantissa_bits: int | None = None, safetensors: bool = False) -> None:
    """Write the biLM of an `Elmo`, or a `BiLm`, into the directory `output`; further arguments as in `export_run`."""
    bilms = [submodule for submodule in module.modules() if isinstance(submodule, BiLm)]
    if len(bilms) != 1:
        raise ConfigurationError(f"module: expected an Elmo or a BiLm, or a module around one, got {len(bilms)} of "
                                 f"them in {type(module).__name__}")
    _write(bilms[0].options, bilms[0].weights(), output, safetensors, _storage(float16, mantissa_bits))


def export_state_dict(path: str | os.PathLike, options_file: str | os.PathLike | None, output: str | os.PathLike,
                      float16: bool = False, mantissa_bits: int | None = None, safetensors: bool = False,
                      allow_nonfinite: bool = False) -> None:
    """As `export_module`, from a file with the `state_dict` of an `Elmo` or a `BiLm` under any prefix.

    `options_file` belongs to the model that was fine-tuned; a model that reads words has its vocabulary beside it.
    AllenNLP's checkpoints are accepted too. NaN and infinities are refused unless `allow_nonfinite`.
    """
    if options_file is None:
        raise ConfigurationError("--options-file: expected the options.json of the model that was fine-tuned, got none")
    options = with_vocabulary(Options.from_file(options_file), vocabulary_in(Path(options_file).parent))
    weights = read_state_dict(path, options, "--from-module", allow_nonfinite)
    _write(options, weights, output, safetensors, _storage(float16, mantissa_bits))


def _write(options: Options, weights: Mapping, output: str | os.PathLike, safetensors: bool, storage: dict) -> None:
    _check_is_no_run(output)
    with atomic_directory(output, last=runs.OPTIONS_FILE) as folder:
        write_model(folder, options.to_dict(), weights, options.vocabulary, _file(safetensors), **storage)


def _file(safetensors: bool) -> str:
    return SAFETENSORS_FILE if safetensors else WEIGHTS_FILE


def _storage(float16: bool, mantissa_bits: int | None) -> dict[str, Any]:
    """Arguments of `write_weights`."""
    return {"dtype": np.float16 if float16 else np.float32, "mantissa_bits": mantissa_bits}
