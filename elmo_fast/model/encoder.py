"""Vectors of tokens without context, from their ids: by the char encoder, or by a table of words."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from elmo_fast.model import state_dict
from elmo_fast.model.options import ConfigurationError, Options
from elmo_fast.model.weights import fingerprint
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.cpu.linear import drop_highway, drop_linear
from elmo_fast.ops.cuda.encoder import fits_fp16
from elmo_fast.ops.highway import highway
from elmo_fast.ops.linear import linear
from elmo_fast.ops.precision import active_precision, full_precision
from elmo_fast.text import characters

_WARMUP_TOKENS = 4096


class TokenSource(Protocol):
    """Ids of tokens to vectors. `row_shape` is the shape of a token's ids: (characters,), or () for a word id."""

    row_shape: tuple[int, ...]

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids of `<S>` and of `</S>`, each [*row_shape]."""

    def token_ids(self, tokens: Sequence[str]) -> torch.Tensor:
        """Ids of tokens: int64 [len(tokens), *row_shape]."""

    def check_ids(self, ids: torch.Tensor) -> None:
        """Raise `ValueError` for ids on the CPU that name no character or word."""

    def __call__(self, ids: torch.Tensor, backend: str) -> torch.Tensor:
        """Vectors of tokens: ids [N, *row_shape] -> [N, P]."""

    def warmup(self, backend: str) -> None:
        """Compile and tune the kernels of calls."""


def check_ids(ids: torch.Tensor, kind: str, largest: int) -> None:
    """Raise `ValueError` for ids on the CPU beyond 0 to `largest`; `kind` is what they number."""
    if ids.device.type == "cpu" and ids.numel() and (ids.min() < 0 or ids.max() > largest):
        raise ValueError(f"ids: expected {kind} ids from 0 to {largest}, got {int(ids.min())} to {int(ids.max())}")


class CharacterEncoder(state_dict.AllenNlpStateDict):
    """Char-CNN, highway layers and projection: character ids [N, C] -> token vectors [N, P].

    Parameters have the names and shapes of bilm-tf's datasets. Where the filters already have the projection's
    size and the weights hold no `CNN_proj`, there is none.
    """

    @torch.inference_mode(False)  # torch counts no edits of tensors made in that mode: packed weights would go stale
    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False):
        super().__init__()
        self.options = options.char_cnn
        self.row_shape = (self.options.max_characters_per_token,)
        self.has_projection = "CNN_proj/W_proj" in weights
        self.datasets = {_own_name(name): name for name in weights if not name.startswith("RNN_")}
        for own, name in self.datasets.items():
            self.register_parameter(own, nn.Parameter(torch.tensor(weights[name]), requires_grad=requires_grad))

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = self.token_ids([characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN])
        return first, last

    def token_ids(self, tokens: Sequence[str]) -> torch.Tensor:
        raw = characters.encode_tokens(tokens, self.options.max_characters_per_token)
        return torch.from_numpy(characters.to_model_ids(raw)).long()

    def check_ids(self, ids: torch.Tensor) -> None:
        check_ids(ids, "character", int(characters.to_model_ids(characters.PADDING)))

    def forward(self, ids: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        own = {name: getattr(self, name) for name in self.datasets}
        filters = [(own[f"W_cnn_{i}"], own[f"b_cnn_{i}"]) for i in range(len(self.options.filters))]
        highways = [[own[f"{name}_{k}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform")]
                    for k in range(self.options.n_highway)]
        projection = (own["W_proj"], own["b_proj"]) if self.has_projection else None
        bounded = (active_precision() == "medium" and ids.device.type == "cuda"
                   and fits_fp16(own["char_embed"], filters, self.options.activation, highways, projection))
        how = {"backend": backend, "bounded": bounded}
        x = char_cnn(ids, own["char_embed"], filters, self.options.activation, **how)  # [N, filters]
        for weights in highways:
            x = highway(x, *weights, **how)
        return full_precision(x) if projection is None else linear(x, *projection, **how)

    @property
    def dim(self) -> int:
        """Values of a token's vector."""
        return len(self.b_proj) if self.has_projection else self.options.n_filters

    def digest(self) -> str:
        """A fingerprint of the weights as they are now, or as they were when they were dropped."""
        if any(value.is_meta for value in self.parameters()):
            return self._dropped_digest
        return fingerprint({name: getattr(self, name).detach().float().cpu().numpy() for name in self.datasets})

    def warmup(self, backend: str = "auto") -> None:
        """Run 1 and 4096 tokens of English lengths, so that kernels are compiled and tuned for both."""
        ids = self.token_ids(["x" * (1 + k % 12) for k in range(_WARMUP_TOKENS)]).to(self.char_embed.device)
        with torch.no_grad():
            for count in (1, _WARMUP_TOKENS):
                self(ids[:count], backend)

    def drop_fp32(self, precision: str) -> None:
        """Leave the large matrices in memory only as the native engine packs them for `precision`."""
        self._dropped_digest = self.digest()
        for k in range(self.options.n_highway):
            names = [f"W_carry_{k}", f"b_carry_{k}", f"W_transform_{k}", f"b_transform_{k}"]
            for name, value in zip(names, drop_highway(*(getattr(self, name) for name in names), precision)):
                setattr(self, name, value)
        if self.has_projection:
            self.W_proj, self.b_proj = drop_linear(self.W_proj, self.b_proj, precision)

    def to_allennlp(self, own: state_dict.Tensors) -> state_dict.Tensors:
        char_embed = own["char_embed"]
        theirs = {"_char_embedding_weights": torch.cat([torch.zeros_like(char_embed[:1]), char_embed])}
        for i in range(len(self.options.filters)):
            theirs[f"char_conv_{i}.weight"] = state_dict.conv_to_allennlp(own[f"W_cnn_{i}"])
            theirs[f"char_conv_{i}.bias"] = own[f"b_cnn_{i}"]
        for k in range(self.options.n_highway):
            for short, long in (("W", "weight"), ("b", "bias")):
                both = own[f"{short}_transform_{k}"], own[f"{short}_carry_{k}"]
                theirs[f"_highways._layers.{k}.{long}"] = state_dict.highway_to_allennlp(*both)
        if self.has_projection:
            theirs["_projection.weight"] = own["W_proj"].t().contiguous()
            theirs["_projection.bias"] = own["b_proj"]
        return theirs

    def from_allennlp(self, theirs: state_dict.Tensors) -> state_dict.Tensors:
        own = {"char_embed": theirs["_char_embedding_weights"][1:]}
        for i in range(len(self.options.filters)):
            own[f"W_cnn_{i}"] = state_dict.conv_from_allennlp(theirs[f"char_conv_{i}.weight"])
            own[f"b_cnn_{i}"] = theirs[f"char_conv_{i}.bias"]
        for k in range(self.options.n_highway):
            for short, long in (("W", "weight"), ("b", "bias")):
                transform, carry = state_dict.highway_from_allennlp(theirs[f"_highways._layers.{k}.{long}"])
                own[f"{short}_transform_{k}"], own[f"{short}_carry_{k}"] = transform, carry
        if self.has_projection:
            own["W_proj"], own["b_proj"] = theirs["_projection.weight"].t().contiguous(), theirs["_projection.bias"]
        return own


class WordEmbedder(nn.Module):
    """A table of word vectors, for models trained on word ids: ids [N], 1 to V, 0 for no token -> [N, P]."""

    row_shape: tuple[int, ...] = ()
    datasets: ClassVar[dict[str, str]] = {"embedding": "embedding"}

    @torch.inference_mode(False)
    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], requires_grad: bool = False):
        super().__init__()
        self.embedding = nn.Parameter(torch.tensor(weights["embedding"]), requires_grad=requires_grad)

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        raise ConfigurationError("boundaries: expected 'present' for a model that reads word ids (their numbers of "
                                 "<S> and </S> are the vocabulary's), got 'add'")

    def token_ids(self, tokens: Sequence[str]) -> torch.Tensor:
        raise ConfigurationError("tokens: expected word ids (this model reads no characters), got strings; "
                                 "number them with TokenBatcher and the model's vocabulary")

    def check_ids(self, ids: torch.Tensor) -> None:
        check_ids(ids, "word", len(self.embedding))

    def warmup(self, backend: str = "auto") -> None:
        """A table has nothing to compile."""

    def forward(self, ids: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        known = full_precision(self.embedding)[(ids - 1).clamp(min=0)]
        return known * (ids > 0)[..., None]


def _own_name(dataset: str) -> str:
    """`CNN/W_cnn_0` -> `W_cnn_0`, `CNN_high_1/b_carry` -> `b_carry_1`, `CNN_proj/W_proj` -> `W_proj`."""
    group, _, leaf = dataset.rpartition("/")
    return f"{leaf}_{group.removeprefix('CNN_high_')}" if group.startswith("CNN_high_") else leaf
