"""Random models, calls and batches, the same for the same seed."""

from typing import Any, NamedTuple

import numpy as np

from elmo_fast import Options
from elmo_fast.weights.datasets import expected_shapes, lstm_name
from tests.support import models
from tests.support.engines import ISAS

TOKENS = ["the", "sea", "is", "grey", "a", "I", ".", "naïve", "東京", "🙂",
          "", "x" * 60, "y" * 48, "z" * 49, "12,000", "un-do", "<S>", "</S>", "a\udc80b"]
CLIPS = (None, 3.0, 0.3, 0.05)


class Configuration(NamedTuple):
    """A model, the arguments of a call, and batches of sentences that shrink and grow."""

    options: Options
    weights: dict[str, np.ndarray]
    state: str
    warm_text: list[list[str]]
    batches: list[list[list[str]]]
    elmo: dict[str, Any]  # arguments of `Elmo`
    backend: str
    isa: str | None
    threads: int


def draw(seed: int) -> Configuration:
    """The configuration of a seed."""
    generator = np.random.default_rng(seed)

    def one_of(*choices):
        return choices[generator.integers(len(choices))]

    def sentence(longest=8):
        return [one_of(*TOKENS) for _ in range(generator.integers(longest + 1))]

    options = draw_options(generator, one_of)
    batches = [[sentence(one_of(0, 3, 8, 8)) for _ in range(size)] for size in generator.permutation(6) + 1]
    cached = one_of(None, None, [TOKENS[10], *generator.permutation(TOKENS[:10])[: one_of(1, 5, 10)].tolist()])
    elmo = {"num_output_representations": one_of(1, 1, 2, 3), "do_layer_norm": one_of(False, True),
            "keep_sentence_boundaries": one_of(False, True), "vocab_to_cache": cached,
            "requires_grad": one_of(False, False, True),
            "scalar_mix_parameters": one_of(None, None, generator.normal(size=options.n_layers).tolist())}
    return Configuration(
        options, draw_weights(options, generator, seed), one_of("carry", "carry", "zero", "warm"),
        [sentence() for _ in range(one_of(1, 2))], batches, elmo,
        backend=one_of("auto", "auto", "auto", "auto", "torch", "reference"), isa=one_of(None, *ISAS),
        threads=one_of(1, 2, 3))


def draw_options(generator, one_of) -> Options:
    """1 to 4 layers, sizes from 1 to 48; in some models cells or filters have the size of the projection."""
    longest = one_of(3, 4, 5, 7, 9, 16, 50)
    filters = [[int(generator.integers(1, min(longest, 8) + 1)), int(generator.integers(1, 13))]
               for _ in range(one_of(1, 2, 3, 4))]
    dim, projection = (int(size) for size in generator.integers(1, 49, 2))
    projection = one_of(projection, projection, projection, sum(count for _, count in filters))
    return Options.from_dict({
        "lstm": {"dim": one_of(dim, dim, dim, projection), "projection_dim": projection, "n_layers": one_of(1, 2, 3, 4),
                 "use_skip_connections": one_of(False, True), "cell_clip": one_of(*CLIPS), "proj_clip": one_of(*CLIPS)},
        "char_cnn": {"embedding": {"dim": int(generator.integers(1, 17))}, "filters": filters,
                     "n_highway": one_of(0, 1, 2), "n_characters": one_of(261, 262),
                     "max_characters_per_token": longest, "activation": one_of("relu", "tanh")}})


def draw_weights(options: Options, generator, seed: int) -> dict[str, np.ndarray]:
    """Weights, in some files with projections that the sizes do not require."""
    weights, surplus = models.weights(options, seed), set()
    if generator.integers(2):
        surplus |= {"CNN_proj/W_proj", lstm_name(0, 0, "W_P_0")}
    shapes = expected_shapes(options, surplus)
    for name in (name for name in shapes if name not in weights):
        weights[name] = generator.normal(0, shapes[name][0] ** -0.5, shapes[name]).astype(np.float32)
    return {name: weights[name] for name in shapes}
