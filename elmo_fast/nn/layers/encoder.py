"""Vectors of tokens without context, from their ids: by the char encoder, or by a table of words."""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from elmo_fast.engine.backend import check_backend, effective_precision
from elmo_fast.engine.native import PackedWeights, on_this_machine
from elmo_fast.engine.precision import check_precision
from elmo_fast.errors import ConfigurationError
from elmo_fast.nn.at_rest import AtRest, Now
from elmo_fast.nn.layers import layout
from elmo_fast.nn.layers.batch_layout import add_boundaries, checked_mask, unique_rows
from elmo_fast.nn.layers.cell import linear_of
from elmo_fast.nn.layers.highway import Highway
from elmo_fast.nn.layers.packed import Packed
from elmo_fast.nn.layers.token_vectors import HIGHWAY, token_vectors, with_words, word_vectors
from elmo_fast.nn.outside_graphs import outside_graphs
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.char_cnn.activations import ACTIVATIONS
from elmo_fast.ops.device import refuse_capture
from elmo_fast.ops.numerics import active_precision, numerics
from elmo_fast.text.batching import BOUNDARIES, check_batch, number_tokens
from elmo_fast.weights.datasets import fingerprint
from elmo_fast.weights.options import Options

_WARMUP_TOKENS = 4096


class TokenSource(Packed):
    """Ids of tokens to their vectors [N, P], of `dim` P.

    `row_shape` is the shape of a token's ids, `largest` the largest id.
    """

    boundaries = BOUNDARIES
    reads_text = True
    weights: Callable[[], dict[str, torch.Tensor]]  # by dataset name

    @classmethod
    def of_weights(cls, *arguments, **named) -> "TokenSource":
        """A source with the arguments of `_build`."""
        source = cls.__new__(cls)
        source._build(*arguments, **named)
        return source

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
        unique, running, lengths = number_tokens(check_batch(batch))
        ids = torch.zeros(len(lengths), int(lengths.max(initial=0)), *self.row_shape, dtype=torch.int64)
        ids[torch.arange(ids.shape[1]) < torch.from_numpy(lengths)[:, None]] = self.token_ids(unique)[running]
        return ids

    def digest(self) -> str:
        """A fingerprint of the current weights."""
        return self.now().get("digest", lambda: fingerprint(
            {name.rpartition("/")[2]: value.detach().float().cpu().numpy() for name, value in self.weights().items()}))

    def warmup(self, backend: str = "auto") -> None:
        """Compile what encodes tokens on a GPU: nothing, unless a class says otherwise."""


class CharacterEncoder(TokenSource):
    """Char-CNN, highway layers and projection: character ids [N, C] -> token vectors [N, P].

    Parameters and parts are those of AllenNLP's `_ElmoCharacterEncoder`: `_char_embedding_weights` [262, E],
    `char_conv_k`, `_highways` and `_projection`, which is None without `CNN_proj` in the weights.
    """

    word_embed: torch.Tensor | None  # [words, word dim] of ELMoForManyLangs

    @torch.inference_mode(False)
    def _build(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False,
               precision: str = "highest", backend: str = "auto") -> None:
        """Set parts and attributes; `weights` are by dataset name, and are copied."""
        def parameter(values: torch.Tensor) -> nn.Parameter:
            return nn.Parameter(values, requires_grad)

        values = {name: torch.tensor(array) for name, array in weights.items() if not name.startswith("RNN_")}
        nn.Module.__init__(self)
        self.model_options, self.options, self.dim = options, options.char_cnn, options.lstm.projection_dim
        self._ids, self.row_shape = options.token_ids(), (self.options.max_characters_per_token,)
        self.precision, self.backend = check_precision(precision), check_backend(backend)
        self.output_dim, self.requires_grad, self._at_rest = self.dim, requires_grad, AtRest()
        self._embedding_name = next(name for name in values if name.endswith("char_embed"))
        table = values[self._embedding_name]
        self.largest = len(table)
        self._char_embedding_weights = parameter(torch.cat([torch.zeros_like(table[:1]), table]))
        for k, (width, count) in enumerate(self.options.filters):
            conv = nn.Conv1d(table.shape[1], count, width, device="meta")  # draws no values
            conv.weight = parameter(layout.convolution(values[f"CNN/W_cnn_{k}"]))
            conv.bias = parameter(values[f"CNN/b_cnn_{k}"])
            self.add_module(f"char_conv_{k}", conv)
        self._highways = Highway(self.options.n_filters, 0)
        for k in range(self.options.n_highway):
            gates = [values[f"CNN_high_{k}/{name}"] for name in HIGHWAY]
            self._highways._layers.append(linear_of(*layout.highway_layer(*gates), requires_grad))
        self._projection = None
        self.register_parameter("word_embed", None)
        self._words_name = next((name for name in values if name.endswith("word_embed")), None)
        if self._words_name is not None:
            self.word_embed = parameter(values[self._words_name])
        if "CNN_proj/W_proj" in values:
            self._projection = linear_of(values["CNN_proj/W_proj"].t().contiguous(), values["CNN_proj/b_proj"],
                                         requires_grad)

    @property
    def _convolutions(self) -> list[nn.Module]:
        """`char_conv_0`, `char_conv_1`, ..."""
        return [getattr(self, f"char_conv_{k}") for k in range(len(self.options.filters))]

    def get_output_dim(self) -> int:
        """The size of a token's vector, P."""
        return self.output_dim

    @outside_graphs
    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Vectors of sentences given as ids int [B, T, *row_shape], zero past a sentence's end. AllenNLP's call.

        Returns `mask` int64 [B, T + 2], with `<S>` and `</S>`, and `token_embedding` [B, T + 2, P], zero past a
        sentence's end.
        """
        if not isinstance(ids, torch.Tensor):
            raise ValueError(f"inputs: expected a tensor of ids (batch_to_ids), got {type(ids).__name__}")
        refuse_capture(self.like.device)
        if ids.dim() < 2 or ids.shape[2:] != self.row_shape or ids.is_floating_point():
            raise ValueError(f"inputs: expected integers of shape [batch, tokens, {self.row_shape[0]}], "
                             f"got {ids.dtype} of shape {tuple(ids.shape)}")
        bounded, mask = add_boundaries(ids, checked_mask(ids, self, "inputs"), *self.boundary_ids())
        now = self.now()
        rows, index = unique_rows(bounded[mask]) if now.is_plain else (bounded.flatten(0, 1), mask.flatten())
        vectors = self.encode_rows(rows, self.backend, self.precision, now)[index]  # [N, P]
        padded = vectors.new_zeros(*mask.shape, vectors.shape[-1], dtype=self.like.dtype)
        padded[mask] = vectors.to(padded)
        return {"mask": mask.long(), "token_embedding": padded}

    def encode_rows(self, ids: torch.Tensor, backend: str = "auto", precision: str | None = None,
                    now: Now | None = None) -> torch.Tensor:
        """Vectors of single tokens, [N, *row_shape] -> [N, P]; `precision` is by default that of `numerics`."""
        now, precision = now or self.now(), precision or active_precision()
        if now.is_plain and self.is_packed(backend, now):
            packed = self._packed(effective_precision(precision), now)
            return torch.from_numpy(packed.encode(np.ascontiguousarray(ids.numpy(), np.int32)))
        with numerics(precision, self.like.device):
            if now.is_plain:
                return token_vectors(ids, self.weights(now), self.model_options, backend)
            return self._by_parts(ids)

    def is_packed(self, backend: str, now: Now) -> bool:
        """Whether `encode_rows` runs in the C++ engine on packed weights: on the CPU and without gradients."""
        return (self.like.device.type == "cpu" and not needs_gradient(now.tensors)
                and resolve("char_cnn", backend, *now.tensors) == "native")

    def _by_parts(self, ids: torch.Tensor) -> torch.Tensor:
        """As `encode_rows`, by calls of the parts, as AllenNLP makes them."""
        table, activation = self._char_embedding_weights, ACTIVATIONS[self.options.activation].apply
        x = nn.functional.embedding(ids[:, : self.options.max_characters_per_token].to(table.device), table)
        x = x.transpose(1, 2)  # [N, E, C]
        x = torch.cat([activation(convolution(x).max(-1).values) for convolution in self._convolutions], dim=1)
        x = with_words(ids, self._highways(x), self.word_embed)
        return x if self._projection is None else self._projection(x)

    # ---- weights -----------------------------------------------------------------------------------------------------

    def now(self) -> Now:
        """As in `Packed`; the parts also have to be of the model's sizes."""
        now = super().now()
        now.is_plain = (now.is_plain and self._highways._activation is nn.functional.relu
                        and len(self._highways._layers) == self.options.n_highway
                        and all(part.weight.shape[::2] == (count, width) and part.stride == (1,)
                                and part.padding == (0,)
                                for part, (width, count) in zip(self._convolutions, self.options.filters)))
        return now

    def weights(self, now: Now | None = None) -> dict[str, torch.Tensor]:
        """Weights by dataset name, in bilm-tf's layout and in file order.

        Computed once for parameters at rest, and in every call while gradients are recorded.
        """
        now = now or self.now()
        return self._converted() if needs_gradient(now.tensors) else now.get(
            "weights", lambda: {name: value.detach() for name, value in self._converted().items()})

    def _converted(self) -> dict[str, torch.Tensor]:
        weights = {self._embedding_name: self._char_embedding_weights[1:]}
        for k, part in enumerate(self._convolutions):
            weights |= {f"CNN/W_cnn_{k}": layout.filters(part.weight), f"CNN/b_cnn_{k}": part.bias}
        for k, part in enumerate(self._highways._layers):
            values = layout.highway_weights(part.weight, part.bias)
            weights |= {f"CNN_high_{k}/{name}": value for name, value in zip(HIGHWAY, values)}
        if self._projection is not None:
            weights |= {"CNN_proj/W_proj": self._projection.weight.t().contiguous(),
                        "CNN_proj/b_proj": self._projection.bias}
        return weights if self.word_embed is None else weights | {self._words_name: self.word_embed}

    def _packed(self, precision: str, now: Now) -> PackedWeights:
        def pack() -> PackedWeights:
            weights = {name: value.detach().float().numpy() for name, value in self._converted().items()}
            return PackedWeights(self.model_options, weights, precision)

        return now.get(on_this_machine(precision), pack)

    def warmup(self, backend: str = "auto") -> None:
        """Run 1 and 4096 tokens of English lengths, so that kernels are compiled for both counts."""
        ids = self.token_ids(["x" * (1 + k % 12) for k in range(_WARMUP_TOKENS)]).to(self.like.device)
        with torch.no_grad():
            for count in (1, _WARMUP_TOKENS):
                self.encode_rows(ids[:count], backend)


CharacterEncoder._forwards = frozenset({CharacterEncoder.forward, nn.Conv1d.forward, Highway.forward,
                                        nn.ModuleList.forward, nn.Linear.forward})


class WordEmbedder(TokenSource):
    """A table of word vectors, for models of words: ids [N], 1 to V, 0 for no token -> [N, P].

    Row k belongs to word k of the options' vocabulary, as in bilm-tf; words outside it are `<UNK>`. Without a
    vocabulary the model reads ids alone. Computes alike in every precision and backend.
    """

    row_shape: tuple[int, ...] = ()

    @torch.inference_mode(False)
    def _build(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False, *_: str) -> None:
        nn.Module.__init__(self)
        self.embedding = nn.Parameter(torch.tensor(weights["embedding"]), requires_grad=requires_grad)
        self.largest, self.dim = self.embedding.shape
        self._ids, self.reads_text = options.token_ids(), options.vocabulary is not None
        self._at_rest = AtRest()

    def weights(self) -> dict[str, torch.Tensor]:
        """Weights by dataset name."""
        return {"embedding": self.embedding}

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.reads_text:
            raise ConfigurationError("boundaries: expected 'present' for word ids of a model without a vocabulary "
                                     "(vocab.txt beside its weights), got 'add'")
        return super().boundary_ids()

    def now(self) -> Now:
        """As in `Packed`; nothing but the table is read."""
        now = super().now()
        now.is_plain = True
        return now

    def forward(self, ids: torch.Tensor, *_: object) -> torch.Tensor:
        return word_vectors(ids, self.embedding)

    encode_rows = forward
