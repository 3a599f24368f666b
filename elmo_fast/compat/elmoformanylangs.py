"""`Embedder` with the calls of ELMoForManyLangs (github.com/HIT-SCIR/ELMoForManyLangs), on its models."""

import os
import random
import sys
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, check_count, check_path, shown
from elmo_fast.compat.elmo_embedder import ElmoEmbedder
from elmo_fast.environment import extra
from elmo_fast.nn.manylangs import ManyLangsBiLm
from elmo_fast.text.batching import check_batch
from elmo_fast.weights.families.manylangs import read_config
from elmo_fast.weights.sources import find_model

with extra("torch"):
    import torch


class Embedder:
    """Computes vectors of tokenized sentences with the model in a directory or ZIP, on the first GPU if there is one.

    As in the original, sentences are sorted by length, batches run in random order (`random.shuffle`), and states are
    carried from batch to batch and from call to call, so that results repeat only with the same `random.seed`. With
    `state` `zero` or `warm` a sentence's vectors depend on that sentence only. `options` are fields of `ModelOptions`.
    `char_lexicon` and, for a model of words, `word_lexicon` have the numbers in `char.dic` and `word.dic`.
    """

    def __init__(self, model_dir: str | os.PathLike, batch_size: int = DEFAULT_BATCH_SIZE, **options):
        files = find_model(Path(check_path("model_dir", model_dir)))
        self.model_dir, self.batch_size = model_dir, check_count("batch_size", batch_size)
        self.config, _ = read_config(files.weight_file.parent)
        self.use_cuda = torch.cuda.is_available()
        self.model = ManyLangsBiLm.from_model(files, **options)
        self.char_lexicon, self.word_lexicon = self.model.options.characters, self.model.options.words
        self.model.to("cuda" if self.use_cuda else "cpu").eval()

    def sents2elmo(self, sents: Sequence[Sequence[str]], output_layer: int = -1) -> list[np.ndarray]:
        """Return the vectors of every sentence, float32 [tokens, 2 P].

        `output_layer` is -1 for the mean of the layers, -2 for all layers, [layers, tokens, 2 P], or the number of a
        layer; 0 is the token layer.
        """
        sents, layers = check_batch(sents, "sents"), self.model.num_layers
        if type(output_layer) is bool or not isinstance(output_layer, Integral) or not -2 <= output_layer < layers:
            raise ValueError(f"output_layer: expected -1 for the mean, -2 for all layers, or a layer from 0 to "
                             f"{layers - 1}, got {shown(output_layer)}")
        arrays = self._embed_carried(sents) if self.model.state == "carry" else ElmoEmbedder.from_bilm(
            self.model).stream(sents, self.batch_size)
        if output_layer == -1:
            return [vectors.mean(axis=0) for vectors in arrays]
        return [vectors if output_layer == -2 else vectors[output_layer] for vectors in arrays]

    def _embed_carried(self, sents: list[Sequence[str]]) -> list[np.ndarray]:
        order = sorted(range(len(sents)), key=lambda number: -len(sents[number]))
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        random.shuffle(batches)
        results: dict[int, np.ndarray] = {}
        for batch in batches:
            with torch.no_grad():
                layers, lengths = self.model.embed_tokens([sents[number] for number in batch])
            values = torch.stack(layers).float().cpu().numpy()  # [layers, N, 2 P]
            for number, vectors in zip(batch, np.split(values, np.cumsum(lengths)[:-1], axis=1)):
                results[number] = vectors[:, 1:-1].copy()
        return [results[number] for number in range(len(sents))]


if __name__ == "__main__":
    sys.exit("elmoformanylangs: expected `elmo-fast embed INPUT OUTPUT --all --model DIR`; this module only provides "
             "the class Embedder")
