"""`ElmoModule`: the first module of a sentence-transformers model, followed by a `Pooling`."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FreeState, Layers, Precision, check_count, shown
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.environment import extra
from elmo_fast.integrations import check_arguments, width
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.layers.batch_layout import remove_boundaries
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer
from elmo_fast.train.export import export_module
from elmo_fast.weights.sources import DEFAULT_MODEL

with extra("sentence-transformers"):
    import torch

    try:
        from sentence_transformers.sentence_transformer.modules import InputModule
    except ModuleNotFoundError:  # before version 6
        from sentence_transformers.models import InputModule

_HUB = ("token", "cache_folder", "revision", "local_files_only")


class ElmoModule(InputModule):
    """Token embeddings and attention mask of texts.

    `layers`, `state` (`zero` or `warm`) and `tokenizer` are arguments of `LoadedElmo.embed`, `precision`, `backend` and
    `allow_nonfinite` those of `BiLm.from_model`. Tokens past `max_seq_length` are dropped. With `requires_grad` the
    biLM's weights are fine-tuned. `save` also writes the weights.
    """

    config_file_name = "elmo_config.json"
    config_keys = ("layers", "state", "max_seq_length", "requires_grad", "precision", "backend", "allow_nonfinite")
    tokenizer = None  # of transformers; there is none

    def __init__(self, model: str = DEFAULT_MODEL, *, layers: Layers = "average", state: FreeState = "warm",
                 max_seq_length: int | None = None, requires_grad: bool = False, precision: Precision = "highest",
                 backend: str = "auto", allow_nonfinite: bool = False, tokenizer: str | Tokenizer = "auto"):
        super().__init__()
        self.layers, self.state, self.requires_grad, self.precision, self.backend, self.allow_nonfinite = (
            layers, state, requires_grad, precision, backend, allow_nonfinite)
        self.max_seq_length = None if max_seq_length is None else check_count("max_seq_length", max_seq_length)
        self.bilm = BiLm.from_model(model, state=state, requires_grad=requires_grad, precision=precision,
                                    backend=backend, allow_nonfinite=allow_nonfinite)
        self._tokenizer, self._split = tokenizer, find_tokenizer(tokenizer)
        elmo = LoadedElmo(self.bilm)
        check_arguments(elmo, layers, state, DEFAULT_BATCH_SIZE)
        self._width = width(elmo, layers)

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **_: Any) -> dict[str, torch.Tensor]:
        """Character ids of texts, int64 [texts, T, C] with T at least 1, and the mask of tokens, int64 [texts, T].

        For a model that reads words, word ids [texts, T].
        """
        for number, text in enumerate(inputs):
            if not isinstance(text, str):
                raise ValueError(f"inputs[{number}]: expected a string, got {type(text).__name__}")
        tokens = [self._split((prompt or "") + text)[: self.max_seq_length] for text in inputs]
        source = self.bilm.token_source
        ids = source.batch_ids([*tokens, source.boundaries[:1]])[:-1]
        return {"input_ids": ids, "attention_mask": ((ids > 0).any(dim=2) if source.row_shape else ids > 0).long()}

    tokenize = preprocess  # the name before sentence-transformers 6

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `token_embeddings`: [texts, T, width], zero past a text's end."""
        activations, mask = self.bilm(features["input_ids"])
        if isinstance(self.layers, str) and self.layers == "all":
            values = torch.cat(activations, dim=2)
        elif isinstance(self.layers, Integral):
            values = activations[self.layers]
        elif isinstance(self.layers, str):
            values = activations[-1] if self.layers == "top" else sum(activations) / len(activations)
        else:
            values = sum(factor * layer for factor, layer in zip(self.layers, activations))
        return {**features, "token_embeddings": remove_boundaries(values, mask)[0]}

    def get_embedding_dimension(self) -> int:
        """The number of values per token."""
        return self._width

    get_word_embedding_dimension = get_embedding_dimension  # the name before sentence-transformers 6

    def get_config_dict(self) -> dict[str, Any]:
        """The arguments of `__init__` as `save` writes them; `ValueError` if the tokenizer is a function."""
        if not isinstance(self._tokenizer, str):
            raise ValueError("tokenizer: expected a name or package.module:function, which a file can hold, got a "
                             f"function ({shown(self._tokenizer)})")
        return {**super().get_config_dict(), "tokenizer": self._tokenizer}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write the configuration, the options and the weights."""
        self.save_config(output_path)
        export_module(self.bilm, output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **arguments: Any) -> "ElmoModule":
        """Load a module that `save` wrote; sentence-transformers 6 requires `trust_remote_code=True`."""
        hub_options = {"subfolder": subfolder, **{name: arguments[name] for name in _HUB if name in arguments}}
        config = cls.load_config(model_name_or_path, **hub_options)
        return cls(cls.load_dir_path(model_name_or_path, **hub_options), **config)
