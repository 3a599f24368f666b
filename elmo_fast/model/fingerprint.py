"""Fingerprints of models: what a token table remembers of the model that made it."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping

import numpy as np

from elmo_fast.model.options import Options

_DIGEST_BYTES = 16


def fingerprint(options: Options, weights: Mapping[str, np.ndarray]) -> str:
    """32 hexadecimal digits of what decides a model's numbers: the network's options and every weight.

    Training settings in `options.json` do not count, nor does the order of the weights.
    """
    network = [None if each is None else dataclasses.asdict(each) for each in (options.lstm, options.char_cnn)]
    digest = hashlib.blake2b(json.dumps(network, sort_keys=True).encode(), digest_size=_DIGEST_BYTES)
    _add_weights(digest, weights)
    return digest.hexdigest()


def weights_digest(weights: Mapping[str, np.ndarray]) -> str:
    """32 hexadecimal digits of some weights alone."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    _add_weights(digest, weights)
    return digest.hexdigest()


def _add_weights(digest, weights: Mapping[str, np.ndarray]) -> None:
    for name in sorted(weights):
        values = np.ascontiguousarray(weights[name], dtype="<f4")
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.data)
