"""bilm-tf's `bilm.model`: `BidirectionalLanguageModel`, called with id arrays, and the two dumps."""

import dataclasses
import os
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from elmo_fast.choices import check_count
from elmo_fast.compat.bilm.elmo import Variables
from elmo_fast.embed.files import hdf5_file, read_lines, scan
from elmo_fast.embed.stream import SlotStream
from elmo_fast.model.atomic_file import atomic_hdf5, check_target
from elmo_fast.model.batch_layout import remove_boundaries
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.options import ConfigurationError, Options
from elmo_fast.model.sources import find_model
from elmo_fast.model.token_table.file import describe, read_table
from elmo_fast.model.token_table.table import TokenTable
from elmo_fast.model.weights import read_weights
from elmo_fast.ops.reference import State
from elmo_fast.text.batching import BOUNDARIES
from elmo_fast.text.vocabulary import Vocabulary

__all__ = ["BidirectionalLanguageModel", "BilmOps", "dump_bilm_embeddings", "dump_token_embeddings"]
_WORDS_PER_BLOCK = 4096


class BilmOps(dict):
    """The result of a `BidirectionalLanguageModel`; `variables` holds the weights of `weight_layers`."""

    variables: Variables


class BidirectionalLanguageModel(nn.Module):
    """A pretrained biLM with bilm-tf's call: ids in, layers out, states carried from call to call, no weight trained.

    `options_file` and `weight_file` are paths or URLs. With `use_character_inputs=False` it reads word ids
    (`TokenBatcher`), and `embedding_weight_file` has their vectors (`dump_token_embeddings`, or `elmo-fast cache`); a
    file that names another model is refused. `max_batch_size` bounds the sentences of a call. `state`, `precision` and
    `backend` are those of `BiLm`.

    Every `stream` carries its own states, as every placeholder does in bilm-tf: name one for each use of the model
    that runs by turns, such as contexts and questions.
    """

    def __init__(
        self,
        options_file: str | os.PathLike,
        weight_file: str | os.PathLike,
        use_character_inputs: bool = True,
        embedding_weight_file: str | os.PathLike | None = None,
        max_batch_size: int = 128,
        *,
        state: str = "carry",
        precision: str = "highest",
        backend: str = "auto",
    ):
        super().__init__()
        if not use_character_inputs and embedding_weight_file is None:
            raise ValueError("embedding_weight_file: expected the file of token vectors, which "
                             "use_character_inputs=False reads, got None")
        self.max_batch_size = int(check_count("max_batch_size", max_batch_size))
        self.use_character_inputs = bool(use_character_inputs)
        table = None if use_character_inputs else embedding_weight_file
        self.bilm = _read(options_file, weight_file, table, state=state, precision=precision, backend=backend)
        self.variables = Variables()
        self._streams: dict[Hashable, State | None] = {}

    def forward(self, ids: np.ndarray | torch.Tensor, stream: Hashable = "") -> BilmOps:
        """Run a batch: ids int [n, T + 2, C], or word ids [n, T + 2], as the batchers give them.

        Returns `lm_embeddings` [n, layers, T, 2 P], token layer first and zero past a sentence's end, `lengths` int64
        [n] and `mask` bool [n, T], all without `<S>` and `</S>`, and `token_embeddings` [n, T + 2, P] with them.
        Raises `ValueError` for more than `max_batch_size` sentences, a sentence without both boundaries, and ids of
        another shape, type or range.
        """
        ids = self._checked(ids)
        if len(ids) > self.max_batch_size:
            raise ValueError(f"ids: expected at most max_batch_size ({self.max_batch_size}) sentences, "
                             f"got {len(ids)}; give a larger max_batch_size when the model is made")
        mask = _mask(ids)
        lengths = mask.sum(1) - 2
        if (lengths < 0).any():
            row = int((lengths < 0).nonzero()[0])
            raise ValueError(f"ids: expected <S> and </S> in every sentence, got {int(lengths[row]) + 2} positions in "
                             f"row {row}; token_embeddings(ids) takes tokens without them")
        layers = self._layers(ids, stream) if len(ids) else [
            self._zeros(*ids.shape[:2], self.bilm.get_output_dim()) for _ in range(self.bilm.num_layers)]
        inner = [remove_boundaries(layer, mask)[0] for layer in layers]
        ops = BilmOps(lm_embeddings=torch.stack(inner, dim=1), lengths=lengths, mask=remove_boundaries(mask, mask)[1],
                      token_embeddings=layers[0][..., : layers[0].shape[-1] // 2].contiguous())
        ops.variables = self.variables
        return ops

    def token_embeddings(self, ids: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Vectors of tokens without context, [n, T, P] for ids [n, T, ...]; zero where there is no token.

        The ids need no boundaries, and carried states do not change.
        """
        ids = self._checked(ids)
        mask = _mask(ids)
        vectors = self._zeros(*mask.shape, self.bilm.get_output_dim() // 2)
        if mask.any():
            vectors[mask] = self.bilm.encode_ids(ids[mask]).to(vectors.dtype)
        return vectors

    def lstm_init_states(self, stream: Hashable = "") -> dict[str, list[list[torch.Tensor]]]:
        """Initial states of the next batch of a stream: `["forward"][layer]` and `["backward"][layer]` are [c, h].

        c [max_batch_size, D], h [max_batch_size, P]; rows that never ran are zero.
        """
        layers, h_dim, c_dim = self._lstm.state_sizes
        carried = self._streams.get(stream) or (self._zeros(layers, 0, h_dim), self._zeros(layers, 0, c_dim))
        h, c = (nn.functional.pad(values, (0, 0, 0, self.max_batch_size - values.shape[1])).chunk(2, dim=2)
                for values in carried)
        return {direction: [[c[number][layer], h[number][layer]] for layer in range(layers)]
                for number, direction in enumerate(("forward", "backward"))}

    def reset_states(self, *streams: Hashable) -> None:
        """Forget the carried states of the named streams, or of all."""
        for stream in streams or list(self._streams):
            self._streams.pop(stream, None)

    @property
    def _lstm(self) -> nn.Module:
        return self.bilm._elmo_lstm

    def _layers(self, ids: torch.Tensor, stream: Hashable) -> list[torch.Tensor]:
        self._lstm._states = self._streams.get(stream)
        layers = self.bilm(ids, boundaries="present").activations
        self._streams[stream] = self._lstm._states
        return layers

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._lstm.B_0_0.dtype, device=self._lstm.B_0_0.device)

    def _checked(self, ids: np.ndarray | torch.Tensor) -> torch.Tensor:
        tensor = ids if isinstance(ids, torch.Tensor) else _from_numpy(ids)
        axes = "[sentences, tokens, characters]" if self.use_character_inputs else "[sentences, tokens]"
        if tensor.dim() != (3 if self.use_character_inputs else 2):
            raise ValueError(f"ids: expected integers of shape {axes}, got shape {tuple(tensor.shape)}")
        return tensor.to(self._lstm.B_0_0.device)


def dump_token_embeddings(
    vocab_file: str | os.PathLike,
    options_file: str | os.PathLike,
    weight_file: str | os.PathLike,
    outfile: str | os.PathLike,
    *,
    device: torch.device | str = "cpu",
    precision: str = "highest",
    backend: str = "auto",
    progress: bool = True,
) -> None:
    """Write the vectors of a vocabulary: `embedding`, float32 [words, P], row k for line k of the file.

    The file serves as `embedding_weight_file`, here and in bilm-tf; an attribute names its model, so that another
    model refuses it. It is written atomically. A vocabulary without `<S>` or `</S>` is refused: bilm-tf gives its last
    word the vector of `</S>`.
    """
    check_target(outfile, "outfile")
    words = _vocabulary(vocab_file).words
    bilm = _read_on(device, options_file, weight_file, precision=precision, backend=backend)
    with atomic_hdf5(outfile) as (file, disk), tqdm(total=len(words), unit=" words",
                                                   disable=None if progress else True) as bar:
        dataset = file.create_dataset("embedding", (len(words), bilm.options.lstm.projection_dim), dtype="float32")
        for first in range(0, len(words), _WORDS_PER_BLOCK):
            block = words[first : first + _WORDS_PER_BLOCK]
            with torch.no_grad():
                dataset[first : first + len(block)] = bilm.encode(block).float().cpu().numpy()
            disk.check()
            bar.update(len(block))
        describe(file, None, bilm.fingerprint(), bilm.computes_in)


def dump_bilm_embeddings(
    vocab_file: str | os.PathLike,
    dataset_file: str | os.PathLike,
    options_file: str | os.PathLike,
    weight_file: str | os.PathLike,
    outfile: str | os.PathLike,
    *,
    batch_size: int = 1,
    state: str = "carry",
    device: torch.device | str = "cpu",
    precision: str = "highest",
    backend: str = "auto",
    progress: bool = True,
) -> None:
    """Write the layers of every line of a text file, float32 [layers, tokens, 2 P], keyed `0`, `1`, ... by line.

    As in bilm-tf, every line starts from the state that the line before ended in (`batch_size=1`, `state="carry"`).
    Larger batches are much faster: line i then starts from the state of line `i - batch_size`, as in batches of that
    size; with `state` `zero` or `warm` lines do not depend on each other, and any size gives the same. A blank line has
    no tokens and runs as `<S> </S>`. The output is written atomically.
    """
    check_count("batch_size", batch_size)
    check_target(outfile, "output file")
    _vocabulary(vocab_file)
    bilm = _read_on(device, options_file, weight_file, state=state, precision=precision, backend=backend)
    with open(dataset_file, encoding="utf-8") as file, hdf5_file(outfile) as writer:
        count = scan(file, allow_blank=True)
        sentences = (line.tokens for line in read_lines(file, allow_blank=True))
        stream = SlotStream(bilm, batch_size, runs_empty=True).run(sentences)
        bar = tqdm(stream, total=count, unit=" sentences", disable=None if progress else True)
        for number, vectors in enumerate(bar):
            writer.write(str(number), vectors)


def _read(options_file, weight_file, embedding_weight_file=None, **arguments: Any) -> BiLm:
    files = find_model(options_file=options_file, weight_file=weight_file)
    options = Options.from_file(files.options_file)
    weights = read_weights(files.weight_file, options)
    if embedding_weight_file is None:
        if options.char_cnn is None:
            raise ConfigurationError("use_character_inputs: expected False for a model that reads word ids, got True")
        return BiLm(options, weights, **arguments)
    if options.char_cnn is not None:
        return BiLm(options, weights, token_table=TokenTable.open(embedding_weight_file), **arguments)
    vectors = read_table(embedding_weight_file).vectors.float().numpy()
    options = dataclasses.replace(options, n_tokens_vocab=len(vectors))
    return BiLm(options, {**weights, "embedding": vectors}, **arguments)


def _read_on(device: torch.device | str, options_file, weight_file, **arguments: Any) -> BiLm:
    bilm = BiLm.from_files(options_file, weight_file, **arguments)
    if bilm.options.char_cnn is None:
        raise ConfigurationError("options_file: expected the section char_cnn, since text is read as characters, "
                                 "found a model that reads word ids")
    return bilm.to(device)


def _vocabulary(vocab_file: str | os.PathLike) -> Vocabulary:
    vocabulary = Vocabulary(vocab_file)
    vocabulary.require(*BOUNDARIES)
    return vocabulary


def _from_numpy(ids) -> torch.Tensor:
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        raise ValueError(f"ids: expected integers, got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64, copy=False))


def _mask(ids: torch.Tensor) -> torch.Tensor:
    """Where there is a token: bool [n, T]."""
    return (ids > 0).any(2) if ids.dim() == 3 else ids > 0
