"""Vectors of tokens without context, from their ids: by the char encoder, or by a table of words."""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from elmo_fast.engine.precision import operands_of
from elmo_fast.errors import ConfigurationError
from elmo_fast.model.batching import batch_to_ids
from elmo_fast.model.layers import state_dict
from elmo_fast.model.layers.batch_layout import add_boundaries, checked_mask, unique_rows
from elmo_fast.model.layers.state_dict import AllenNlpStateDict, Conversion
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.char_cnn.cuda import fits_fp16
from elmo_fast.ops.char_cnn.encoder import EncoderWeights, encode, runs_on_engine
from elmo_fast.ops.char_cnn.reference import with_zero_row
from elmo_fast.ops.device import refuse_capture
from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.numerics import active_precision, full_precision, numerics
from elmo_fast.ops.weight_snapshot import Tensors, check_in_full
from elmo_fast.outside_graphs import OutsideGraphs, outside_graphs
from elmo_fast.text import characters
from elmo_fast.text.batching import BOUNDARIES, check_batch, number_tokens
from elmo_fast.weights.datasets import fingerprint
from elmo_fast.weights.options import Options

_WARMUP_TOKENS = 4096


class CharacterEncoder(AllenNlpStateDict):
    """Char-CNN, highway layers and projection: character ids [N, C] -> token vectors [N, P].

    Parameters have the names and shapes of bilm-tf's datasets. Without `CNN_proj` in the weights, which the filters'
    number must then allow, there is no projection. `row_shape` is the shape of a token's ids, (C,), `largest` the
    largest id, `dim` is P.
    """

    largest = int(characters.to_model_ids(characters.PADDING))
    boundaries = BOUNDARIES
    precision, backend = "highest", "auto"  # for sentences; a biLM sets its values
    reads_text = True

    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False):
        super().__init__({_own_name(name): name for name in weights if not name.startswith("RNN_")}, weights,
                         requires_grad)
        self.options, self.dim = options.char_cnn, options.lstm.projection_dim
        self._ids, self.row_shape = options.token_ids(), (self.options.max_characters_per_token,)
        self.has_projection = "CNN_proj/W_proj" in weights

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids of `<S>` and of `</S>`, each [*row_shape]."""
        return self._boundary_ids

    @functools.cached_property
    def _boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(self.token_ids(self.boundaries))

    def token_ids(self, tokens: Sequence[str]) -> torch.Tensor:
        """Ids of tokens: int64 [len(tokens), *row_shape]."""
        return torch.from_numpy(self._ids(tokens)).long()

    def batch_ids(self, batch: Sequence[Sequence[str]]) -> torch.Tensor:
        """Ids of tokenized sentences, without boundaries, 0 past their ends: int64 [sentences, T, *row_shape]."""
        return batch_to_ids(batch, *self.row_shape)

    @outside_graphs
    def forward(self, ids: torch.Tensor, backend: str | None = None) -> dict[str, torch.Tensor] | torch.Tensor:
        """Vectors of single tokens, [N, *row_shape] -> [N, P], or of sentences given as ids int [B, T, *row_shape].

        For sentences the result is AllenNLP's: `mask` int64 [B, T + 2], with `<S>` and `</S>`, and `token_embedding`
        [B, T + 2, P], zero past a sentence's end.
        """
        refuse_capture(self.char_embed.device)
        if not isinstance(ids, torch.Tensor):
            raise ValueError(f"inputs: expected a tensor of ids (batch_to_ids), got {type(ids).__name__}")
        if ids.dim() == 1 + len(self.row_shape):
            with numerics(active_precision(), ids.device):
                return self.encode_rows(ids, self.backend if backend is None else backend)
        if ids.dim() < 2 or ids.shape[2:] != self.row_shape or ids.is_floating_point():
            raise ValueError(f"inputs: expected integers of shape [batch, tokens, {self.row_shape[0]}], "
                             f"got {ids.dtype} of shape {tuple(ids.shape)}")
        bounded, mask = add_boundaries(ids, checked_mask(ids, self, "inputs"), *self.boundary_ids())
        rows, index = unique_rows(bounded[mask])
        with numerics(self.precision, ids.device):
            vectors = self.encode_rows(rows, self.backend)[index].to(self.char_embed.dtype)  # [N, P]
        padded = vectors.new_zeros(*mask.shape, self.dim)
        padded[mask] = vectors
        return {"mask": mask.long(), "token_embedding": padded}

    def encode_rows(self, ids: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        """Vectors of single tokens, [N, *row_shape] -> [N, P]; no hook is called."""
        all_weights = EncoderWeights(self.weights_named(self._names), len(self.options.filters))
        if runs_on_engine(all_weights, ids, backend):
            return encode(ids, all_weights, self.options.activation, active_precision())
        weights = {name: getattr(self, name) for name in self.datasets}
        filters = [(weights[f"W_cnn_{i}"], weights[f"b_cnn_{i}"]) for i in range(len(self.options.filters))]
        highways = [[weights[name] for name in _highway_names(k)] for k in range(self.options.n_highway)]
        projection = (weights["W_proj"], weights["b_proj"]) if self.has_projection else None
        bounded = (operands_of(active_precision(), True) == "fp16" and ids.device.type == "cuda"
                   and fits_fp16(weights["char_embed"], filters, self.options.activation, highways, projection))
        choice = {"backend": backend, "bounded": bounded}
        x = char_cnn(ids, weights["char_embed"], filters, self.options.activation, **choice)  # [N, filters]
        for layer in highways:
            x = highway(x, *layer, **choice)
        return full_precision(x) if projection is None else linear(x, *projection, **choice)

    def layers(self) -> list[Tensors]:
        """All weights, in a single list: they are compared together (see `EncoderWeights`)."""
        return [self.weights_named(self._names)]

    @functools.cached_property
    def _names(self) -> list[str]:
        """The parameters' names in the order of `EncoderWeights`."""
        numbers = range(len(self.options.filters))
        names = ["char_embed", *(f"W_cnn_{i}" for i in numbers), *(f"b_cnn_{i}" for i in numbers),
                 *itertools.chain(*map(_highway_names, range(self.options.n_highway)))]
        if self.has_projection:
            names += ["W_proj", "b_proj"]
        return names

    def digest(self) -> str:
        """A fingerprint of the current weights."""
        return fingerprint({name: getattr(self, name).detach().float().cpu().numpy() for name in self.datasets})

    def warmup(self, backend: str = "auto") -> None:
        """Run 1 and 4096 tokens of English lengths, so that kernels are compiled and tuned for both counts."""
        ids = self.token_ids(["x" * (1 + k % 12) for k in range(_WARMUP_TOKENS)]).to(self.char_embed.device)
        with torch.no_grad():
            for count in (1, _WARMUP_TOKENS):
                self(ids[:count], backend)

    def conversions(self) -> Iterator[Conversion]:
        yield Conversion(["char_embed"], ["_char_embedding_weights"], lambda rows: (with_zero_row(rows),),
                         lambda rows: (rows[1:],))
        for i in range(len(self.options.filters)):
            yield Conversion([f"W_cnn_{i}"], [f"char_conv_{i}.weight"],  # [1, width, E, n] and [n, E, width]
                             lambda weight: (weight.squeeze(0).permute(2, 1, 0).contiguous(),),
                             lambda weight: (weight.permute(2, 1, 0).unsqueeze(0).contiguous(),))
            yield Conversion([f"b_cnn_{i}"], [f"char_conv_{i}.bias"])
        for k in range(self.options.n_highway):
            for short, long in (("W", "weight"), ("b", "bias")):
                yield Conversion([f"{short}_transform_{k}", f"{short}_carry_{k}"], [f"_highways._layers.{k}.{long}"],
                                 state_dict.highway_to_allennlp, state_dict.highway_from_allennlp)
        if self.has_projection:
            yield Conversion(["W_proj"], ["_projection.weight"], state_dict.transposed, state_dict.transposed)
            yield Conversion(["b_proj"], ["_projection.bias"])


class WordEmbedder(OutsideGraphs):
    """A table of word vectors, for models of words: ids [N], 1 to V, 0 for no token -> [N, P].

    Row k belongs to word k of the options' vocabulary, as in bilm-tf; words outside it are `<UNK>`. Without a
    vocabulary the model reads ids alone.
    """

    row_shape: tuple[int, ...] = ()
    boundaries = BOUNDARIES
    datasets: ClassVar[dict[str, str]] = {"embedding": "embedding"}

    @torch.inference_mode(False)
    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False):
        super().__init__()
        self.embedding = nn.Parameter(torch.tensor(weights["embedding"]), requires_grad=requires_grad)
        self.largest, self.dim = self.embedding.shape
        self._ids, self.reads_text = options.token_ids(), options.vocabulary is not None

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids of `<S>` and of `</S>`."""
        if not self.reads_text:
            raise ConfigurationError("boundaries: expected 'present' for word ids of a model without a vocabulary "
                                     "(vocab.txt beside its weights), got 'add'")
        return tuple(self.token_ids(self.boundaries))

    def token_ids(self, tokens: Sequence[str]) -> torch.Tensor:
        """Ids of words: int64 [len(tokens)]."""
        return torch.from_numpy(self._ids(tokens)).long()

    def batch_ids(self, batch: Sequence[Sequence[str]]) -> torch.Tensor:
        """Ids of tokenized sentences, without boundaries, 0 past their ends: int64 [sentences, T]."""
        return padded_ids(self, batch)

    def digest(self) -> str:
        """A fingerprint of the current weights."""
        return fingerprint({"embedding": self.embedding.detach().float().cpu().numpy()})

    def train(self, mode: bool = True) -> "WordEmbedder":
        if self.training and not mode:
            check_in_full(self.parameters())
        return super().train(mode)

    def layers(self) -> list[Tensors]:
        """The weights, in a list of a single layer."""
        return [[self.embedding]]

    def warmup(self, backend: str = "auto") -> None:
        """Does nothing: a table has nothing to compile."""

    def forward(self, ids: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        known = full_precision(self.embedding)[(ids - 1).clamp(min=0)]
        return known * (ids > 0)[..., None]

    encode_rows = forward


TokenSource = CharacterEncoder | WordEmbedder


def padded_ids(source: TokenSource, batch: Sequence[Sequence[str]]) -> torch.Tensor:
    """Ids of tokenized sentences by `source.token_ids`: int64 [sentences, T, *row_shape], 0 past a sentence's end."""
    unique, running, lengths = number_tokens(check_batch(batch))
    ids = torch.zeros(len(lengths), int(lengths.max(initial=0)), *source.row_shape, dtype=torch.int64)
    ids[torch.arange(ids.shape[1]) < torch.from_numpy(lengths)[:, None]] = source.token_ids(unique)[running]
    return ids


def _highway_names(number: int) -> list[str]:
    """Parameters of a highway layer, in the order that the op takes them."""
    return [f"{name}_{number}" for name in ("W_carry", "b_carry", "W_transform", "b_transform")]


def _own_name(dataset: str) -> str:
    """`CNN/W_cnn_0` -> `W_cnn_0`, `CNN_high_1/b_carry` -> `b_carry_1`, `CNN_proj/W_proj` -> `W_proj`."""
    group, _, leaf = dataset.rpartition("/")
    return f"{leaf}_{group.removeprefix('CNN_high_')}" if group.startswith("CNN_high_") else leaf
