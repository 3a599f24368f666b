"""bilm-tf's module `bilm.model`: `BidirectionalLanguageModel`, called with id arrays, and the two dump functions."""

import dataclasses
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from elmo_fast.arguments import MOST_SENTENCES, check_count, check_file, gathered
from elmo_fast.compat.bilm.elmo import Variables
from elmo_fast.embed.build_table import encoded, table_header
from elmo_fast.embed.progress import progress_bar
from elmo_fast.engine.stream import SlotStream
from elmo_fast.engine.table import TokenTable
from elmo_fast.engine.table_file import read_table, write_table
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.atomic import check_target
from elmo_fast.nn.at_rest import parameter_of
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.gpu.of_bilm import BiLmModel
from elmo_fast.nn.layers.batch_layout import remove_boundaries
from elmo_fast.nn.lookup import TokenEncoder
from elmo_fast.nn.outside_graphs import OutsideGraphs, outside_graphs
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.text.batching import BOUNDARIES
from elmo_fast.text.readers import open_texts
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.vectors.layouts.allennlp import hdf5_file
from elmo_fast.weights.datasets import check_finite, read_model
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.sources import find_model

__all__ = ["BidirectionalLanguageModel", "BilmOps", "dump_bilm_embeddings", "dump_token_embeddings"]
_Path = str | os.PathLike


class BilmOps(dict):
    """The result of a `BidirectionalLanguageModel`; `variables` holds the weights of `weight_layers`."""

    variables: Variables


class BidirectionalLanguageModel(OutsideGraphs):
    """A pretrained biLM with bilm-tf's call: it maps ids to layers and carries states from call to call.

    Files are paths or URLs. No weight is trained. With `use_character_inputs=False` it reads word ids (`TokenBatcher`),
    whose vectors are in `embedding_weight_file` (`dump_token_embeddings`, `elmo-fast cache`). Every `stream` has its
    own states, like a placeholder of bilm-tf: name a stream for every kind of batch that alternates with others, such
    as contexts and questions. Further `options` are fields of `ModelOptions`; NaN and infinities in the token vectors
    are treated as in the weights.
    """

    def __init__(self, options_file: _Path, weight_file: _Path, use_character_inputs: bool = True,
                 embedding_weight_file: _Path | None = None, max_batch_size: int = 128, **options):
        super().__init__()
        if not use_character_inputs and embedding_weight_file is None:
            raise ValueError("embedding_weight_file: expected the file of token vectors, which "
                             "use_character_inputs=False needs, got None")
        self.max_batch_size = int(check_count("max_batch_size", max_batch_size, most=MOST_SENTENCES))
        self.use_character_inputs = bool(use_character_inputs)
        table = None if use_character_inputs else embedding_weight_file
        self.bilm = _read(options_file, weight_file, table, gathered(ModelOptions, options))
        self.variables = Variables()
        self._streams: dict[Hashable, State | None] = {}

    @outside_graphs
    def forward(self, ids: np.ndarray | torch.Tensor, stream: Hashable = "") -> BilmOps:
        """Run a batch of ids int [n, T + 2, C], or word ids [n, T + 2], as returned by the batchers.

        Returns `lm_embeddings` [n, layers, T, 2 P], token layer first and zero past a sentence's end, `lengths` int64
        [n] and `mask` bool [n, T], all without `<S>` and `</S>`, and `token_embeddings` [n, T + 2, P] with them.
        Raises `ValueError` for more than `max_batch_size` sentences, missing boundaries and invalid ids.
        """
        ids, mask = self._check_ids(ids)
        if len(ids) > self.max_batch_size:
            raise ValueError(f"ids: expected at most max_batch_size ({self.max_batch_size}) sentences, "
                             f"got {len(ids)}; make the model with a larger max_batch_size")
        lengths = mask.sum(1) - 2
        if (lengths < 0).any():
            row = int((lengths < 0).nonzero()[0])
            raise ValueError(f"ids: expected <S> and </S> in every sentence, got {int(lengths[row]) + 2} positions in "
                             f"row {row}; token_embeddings(ids) takes tokens without them")
        if len(ids):
            layers = self._layers(ids, stream)
        else:
            layers = [self._zeros(*ids.shape[:2], self.bilm.get_output_dim())] * self.bilm.num_layers
        inner = [remove_boundaries(layer, mask)[0] for layer in layers]
        ops = BilmOps(lm_embeddings=torch.stack(inner, dim=1), lengths=lengths, mask=remove_boundaries(mask, mask)[1],
                      token_embeddings=layers[0][..., : layers[0].shape[-1] // 2].contiguous())
        ops.variables = self.variables
        return ops

    def _layers(self, ids: torch.Tensor, stream: Hashable) -> list[torch.Tensor]:
        """Run a batch with the states of a stream; the states that `bilm` itself carries do not change."""
        state, lstm = self.bilm.state, self.bilm._elmo_lstm
        with lstm.exclusive(state == "carry"):
            if state == "carry":
                own_states, lstm._states = lstm._states, self._streams.get(stream)
            try:
                layers = self.bilm(ids, boundaries="present", state=state).activations
                if state == "carry":
                    self._streams[stream] = lstm._states
            finally:
                if state == "carry":
                    lstm._states = own_states
        return layers

    @outside_graphs
    def token_embeddings(self, ids: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return vectors without context, [n, T, P] for ids [n, T, ...] with or without boundaries; keeps states."""
        ids, mask = self._check_ids(ids)
        vectors = self._zeros(*mask.shape, self.bilm.get_output_dim() // 2)
        if mask.any():
            unique, index, _ = TokenEncoder.of(self.bilm).batch(ids[mask][None], "present")
            vectors[mask] = unique[index].to(vectors.dtype)
        return vectors

    def lstm_init_states(self, stream: Hashable = "") -> dict[str, list[list[torch.Tensor]]]:
        """Return initial states of a stream's next batch: `["forward"][layer]` and `["backward"][layer]` are [c, h].

        c [max_batch_size, D], h [max_batch_size, P]; rows that never ran are zero.
        """
        layers, h_dim, c_dim = self.bilm._elmo_lstm.state_sizes
        carried = self._streams.get(stream) or (self._zeros(layers, 0, h_dim), self._zeros(layers, 0, c_dim))
        h, c = (nn.functional.pad(values, (0, 0, 0, self.max_batch_size - values.shape[1])).chunk(2, dim=2)
                for values in carried)
        return {direction: [[c[number][layer], h[number][layer]] for layer in range(layers)]
                for number, direction in enumerate(("forward", "backward"))}

    def reset_states(self, *streams: Hashable) -> None:
        """Reset the carried states of the given streams, or of all."""
        for stream in streams or list(self._streams):
            self._streams.pop(stream, None)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return parameter_of(self.bilm).new_zeros(shape)

    def _check_ids(self, ids: np.ndarray | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Check ids and return them on the model's device, with the mask of tokens, bool [n, T]."""
        if not isinstance(ids, torch.Tensor):
            try:
                ids = np.asarray(ids)
            except ValueError as error:
                raise ValueError("ids: expected an array of integers, got lists of different lengths "
                                 f"({error})") from error
            if ids.dtype.kind not in "iu":
                raise ValueError(f"ids: expected integers, got {ids.dtype}")
            ids = torch.from_numpy(ids.astype(np.int64, copy=False))
        axes = ["sentences", "tokens"]
        if self.use_character_inputs:
            axes.append("characters")
        if ids.dim() != len(axes):
            raise ValueError(f"ids: expected integers of shape [{', '.join(axes)}], got shape {tuple(ids.shape)}")
        if ids.numel() and ids.min() < 0:
            raise ValueError(f"ids: expected integers of at least 0, got {int(ids.min())}")
        ids = ids.to(parameter_of(self.bilm).device)
        return ids, (ids > 0).any(2) if self.use_character_inputs else ids > 0


def dump_token_embeddings(vocab_file: _Path, options_file: _Path, weight_file: _Path, outfile: _Path, *,
                          device: torch.device | str = "cpu", progress: bool = True, **options) -> None:
    """Write the token vectors of a vocabulary: dataset `embedding`, float32 [words, P], row k for line k of the file.

    The output is written atomically and can be used as `embedding_weight_file`, here and in bilm-tf. An attribute
    identifies its model; other models refuse the file. Further `options` are fields of `ModelOptions`.
    """
    check_target(outfile, "outfile")
    words, bilm = _vocabulary_and_model(vocab_file, options_file, weight_file, device, options)
    model = BiLmModel(bilm)
    write_table(outfile, table_header(model, words)._replace(words=None), encoded(model, words, progress))


def dump_bilm_embeddings(vocab_file: _Path, dataset_file: _Path, options_file: _Path, weight_file: _Path,
                         outfile: _Path, *, batch_size: int = 1, device: torch.device | str = "cpu",
                         progress: bool = True, **options) -> None:
    """Write the layers of every line of a text file, float32 [layers, tokens, 2 P], with keys `0`, `1`, ... by line.

    By default line i starts from the final state of the line before, as in bilm-tf. Larger batches are much faster;
    line i then starts from the final state of line `i - batch_size`. With `state` `zero` or `warm` the result does not
    depend on the batch size. A blank line has no tokens and runs as `<S> </S>`. The output is written atomically.
    Further `options` are fields of `ModelOptions`.
    """
    check_count("batch_size", batch_size, most=MOST_SENTENCES)
    check_target(outfile, "output file")
    _, bilm = _vocabulary_and_model(vocab_file, options_file, weight_file, device, options)
    name = check_file("dataset_file", dataset_file)
    reading = open_texts(name, format="text", tokenizer=str.split, allow_blank=True)
    with reading as texts, hdf5_file(outfile) as writer:
        count, sentences = texts.count(), (text.tokens for text in texts)
        stream = SlotStream(BiLmModel(bilm), batch_size, bilm.state, runs_empty=True).run(sentences)
        with progress_bar(count, "sentences", progress) as bar:
            for number, vectors in enumerate(stream):
                writer.write(str(number), vectors)
                bar.update()


def _read(options_file: _Path, weight_file: _Path, embedding_weight_file: _Path | None, opening: ModelOptions) -> BiLm:
    files = find_model(options_file=options_file, weight_file=weight_file)
    options, weights = read_model(files, opening.allow_nonfinite)
    if embedding_weight_file is None:
        if options.char_cnn is None:
            raise ConfigurationError("use_character_inputs: expected False for a model that reads word ids, got True")
        return BiLm(options, weights, opening)
    if options.char_cnn is not None:
        return BiLm(options, weights, opening, token_table=TokenTable.open(embedding_weight_file))
    vectors = read_table(embedding_weight_file, in_memory=True).vectors.astype(np.float32, copy=False)
    if not opening.allow_nonfinite:
        check_finite(f"embedding_weight_file {os.fspath(embedding_weight_file)}", vectors)
    vocabulary = options.vocabulary if len(vectors) == options.n_tokens_vocab else None
    options = dataclasses.replace(options, n_tokens_vocab=len(vectors), vocabulary=vocabulary)
    return BiLm(options, {**weights, "embedding": vectors}, opening)


def _vocabulary_and_model(vocab_file: _Path, options_file: _Path, weight_file: _Path, device: torch.device | str,
                          options: Mapping[str, Any]) -> tuple[Sequence[str], BiLm]:
    vocabulary = Vocabulary(vocab_file)
    vocabulary.require(*BOUNDARIES)  # without them bilm-tf gives its last word the vector of `</S>`
    files = find_model(options_file=options_file, weight_file=weight_file)
    words_file = files.vocab_file or vocab_file  # gives the ids of a model of word ids
    bilm = BiLm.from_model(dataclasses.replace(files, vocab_file=words_file), **options)
    return vocabulary.words, bilm.to(device)
