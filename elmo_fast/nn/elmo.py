"""`Elmo`: a biLM under learned scalar mixes, as AllenNLP's module of that name."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
from torch import nn

from elmo_fast.arguments import check_count, gathered, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.layers.batch_layout import remove_boundaries
from elmo_fast.nn.layers.scalar_mix import ScalarMix
from elmo_fast.nn.lookup import TokenEncoder, WordCache
from elmo_fast.nn.outside_graphs import OutsideGraphs, outside_graphs
from elmo_fast.text.batching import check_sentence
from elmo_fast.weights.opening import ModelOptions

logger = logging.getLogger(__name__)


class ElmoOutput(TypedDict):
    """A list of representations, tensors [batch, ..., T, 2 P], and their mask, int64 [batch, ..., T]."""

    elmo_representations: list[torch.Tensor]
    mask: torch.Tensor


class Elmo(OutsideGraphs):
    """ELMo representations (Peters et al. 2018): `num_output_representations` mixtures of one run of the biLM.

    The call, results and parameter names are AllenNLP 0.9's. `options_file` and `weight_file` are paths or URLs.
    `requires_grad` lets gradients reach every weight of the biLM; without it they reach the scalar mixes alone.
    `vocab_to_cache` is a list of words whose vectors are stored: `word_inputs` are then their numbers in that list,
    where number 0 is padding. `token_table` is a `TokenTable` or a table's file: it gives the vectors of tokens, and
    without `vocab_to_cache`, `word_inputs` are its ids. `scalar_mix_parameters` fixes the mixing weights (before
    the softmax). `module` replaces the biLM: called with (ids, word ids or None), it returns a mapping with
    `activations` and `mask`, and it has `num_layers`. Further `options` are fields of `ModelOptions`.
    """

    __call__: Callable[..., ElmoOutput]  # torch's returns Any
    _bilm: type[BiLm] = BiLm

    def __init__(self, options_file: str | os.PathLike | None, weight_file: str | os.PathLike | None,
                 num_output_representations: int, requires_grad: bool = False, do_layer_norm: bool = False,
                 dropout: float = 0.5, vocab_to_cache: Sequence[str] | None = None,
                 keep_sentence_boundaries: bool = False, scalar_mix_parameters: Sequence[float] | None = None,
                 module: nn.Module | None = None, **options):
        super().__init__()
        opening = gathered(ModelOptions, options, ModelOptions(requires_grad=requires_grad))
        if module is None:
            module = self._bilm.from_files(options_file, weight_file, opening)
        elif opening.token_table is not None:
            raise ConfigurationError("token_table: expected None beside module (a BiLm has its own), got a table")
        elif options_file is not None or weight_file is not None:
            raise ConfigurationError("module: expected options_file and weight_file to be None beside it, "
                                     f"got {shown(options_file)} and {shown(weight_file)}")
        self._elmo_lstm = module
        self._keep_sentence_boundaries = keep_sentence_boundaries
        words = () if vocab_to_cache is None else check_sentence(vocab_to_cache, "vocab_to_cache")
        self._has_cached_vocab = len(words) > 0
        if self._has_cached_vocab and isinstance(self._elmo_lstm, BiLm):
            module._word_embedding = WordCache.of(TokenEncoder.of(module), words)
        self._dropout = nn.Dropout(p=dropout)
        self._mixes = check_count("num_output_representations", num_output_representations, ConfigurationError, 1000)
        for k in range(self._mixes):
            self.add_module(f"scalar_mix_{k}", ScalarMix(self._elmo_lstm.num_layers, do_layer_norm,
                                                         scalar_mix_parameters, scalar_mix_parameters is None))

    def get_output_dim(self) -> int:
        """Values of one token in one representation: 2 P."""
        return self._elmo_lstm.get_output_dim()

    @outside_graphs
    def forward(self, inputs: torch.Tensor | None, word_inputs: torch.Tensor | None = None) -> ElmoOutput:
        """Representations of sentences given as character ids, int [batch, T, C] or [batch, ..., T, C].

        A model of words reads word ids, int [batch, ..., T] (`BiLm.token_source.batch_ids`). `word_inputs` int
        [batch, ..., T] are numbers of cached words, or ids of the token table; for a larger number the characters are
        read, and without larger numbers `inputs` may be None. Returns `elmo_representations`, a list of
        `num_output_representations` tensors [batch, ..., T, 2 P], and `mask`, int64 [batch, ..., T]; T grows by two
        where the boundaries are kept.
        """
        takes_words = self._has_cached_vocab or getattr(self._elmo_lstm, "token_table", None) is not None
        if word_inputs is not None and not takes_words:
            logger.warning("word_inputs were passed, but no vocabulary is cached: the characters are read")
        words = word_inputs if takes_words else None
        for name, ids in (("inputs", inputs), ("word_inputs", words)):
            if not isinstance(ids, torch.Tensor) and not (ids is None and (name == "word_inputs" or words is not None)):
                raise ValueError(f"{name}: expected a tensor of ids (batch_to_ids), got {type(ids).__name__}")
        dims = 2 if getattr(getattr(self._elmo_lstm, "options", None), "char_cnn", self) is None else 3  # of a batch
        leading = inputs.shape[: 1 - dims] if words is None else words.shape[:-1]
        if words is not None and inputs is not None and inputs.shape == words.shape:
            inputs = None  # AllenNLP's documentation passes the numbers of cached words twice
        inputs, words = _flat(inputs, dims), _flat(words, 2)
        output = self._run(inputs, words)
        activations, mask = output["activations"], output["mask"]
        mixed = [getattr(self, f"scalar_mix_{k}")(activations, mask) for k in range(self._mixes)]
        if self._keep_sentence_boundaries:  # layer norm leaves an offset past the end
            mixed = [torch.where(mask[..., None] > 0, values, values.new_zeros(())) for values in mixed]
        else:
            inner = [remove_boundaries(values, mask) for values in mixed]
            mixed, mask = [values for values, _ in inner], inner[0][1]
        shape = (*leading, mask.shape[1])
        return {"elmo_representations": [self._dropout(values).view(*shape, values.shape[-1]) for values in mixed],
                "mask": mask.long().view(shape)}

    def _run(self, inputs: torch.Tensor | None, words: torch.Tensor | None) -> Any:
        """The result of the biLM, whose second argument is word ids unless it is a `BiLm`."""
        if isinstance(self._elmo_lstm, BiLm):
            return self._elmo_lstm(inputs, word_inputs=words)
        return self._elmo_lstm(inputs, words)


def _flat(ids: torch.Tensor | None, dims: int) -> torch.Tensor | None:
    """Fold the leading dimensions into one: [batch, ..., T, C] -> [batch * ..., T, C]; None stays None."""
    return ids.reshape(-1, *ids.shape[1 - dims:]) if ids is not None and ids.dim() > dims else ids
