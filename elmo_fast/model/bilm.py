"""The bidirectional language model: token ids to the representations of every layer."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from elmo_fast.arguments import STATES, check_choice, check_path, gathered
from elmo_fast.engine.backend import check_backend
from elmo_fast.engine.precision import check_precision
from elmo_fast.engine.schedule import Schedule, batch_schedule, make_schedule
from elmo_fast.engine.table import TokenTable
from elmo_fast.engine.tokens import SpareVectors
from elmo_fast.model import hooked
from elmo_fast.model.layers.batch_layout import BiLmOutput, in_text_order, layers_to_write
from elmo_fast.model.layers.encoder import CharacterEncoder, TokenSource, WordEmbedder
from elmo_fast.model.layers.lstm import LstmStack, RunState
from elmo_fast.model.lookup import KeptVectors, TableLookup, TokenEncoder, WordCache, vectors_of_ids
from elmo_fast.model.stored import StoredWeights
from elmo_fast.ops.backend import needs_gradient
from elmo_fast.ops.calling_thread import threads_of_a_child
from elmo_fast.ops.device import refuse_capture, to_device
from elmo_fast.ops.numerics import full_precision, numerics
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.ops.weight_cache import LastResult
from elmo_fast.ops.weight_snapshot import Tensors, one_call
from elmo_fast.outside_graphs import outside_graphs
from elmo_fast.text.batching import check_batch, check_sentence, number_tokens
from elmo_fast.weights.datasets import check_shapes, expected_shapes, read_model
from elmo_fast.weights.families import BILM_TF, Family
from elmo_fast.weights.opening import ModelOptions
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import ModelFiles, find_model


class BiLm(StoredWeights):
    """A bidirectional language model (Peters et al. 2018) with bilm-tf's weights.

    `weights` are arrays by dataset name (`read_weights`); they are copied, and not checked for NaN and infinities.
    Further `arguments` are fields of `ModelOptions`, and replace those of `opening`.

    16-bit parameters (`.half()`, `.bfloat16()`) run in precision `medium`, which rounds them to bf16; activations then
    have the parameters' type, states stay fp32.
    """

    family: ClassVar[Family] = BILM_TF
    words_come_second = False  # whether the second argument of a call is word ids, as in AllenNLP's class

    @threads_of_a_child()
    def __init__(self, options: Options, weights: Mapping[str, np.ndarray], opening: ModelOptions | None = None,
                 **arguments):
        super().__init__()
        opening = gathered(ModelOptions, arguments, opening)
        self.options, self.num_layers = options, options.n_layers  # layers of representations, the token layer included
        self.precision = check_precision(opening.precision)
        self.backend = check_backend(opening.backend)
        self.warm_text = opening.warm_text
        self._check(weights)
        # The two attribute names are AllenNLP's: users reach for them, and its checkpoints hold them.
        self._token_embedder = self._make_token_source(weights, opening.requires_grad)
        self._modules["_word_embedding"] = None  # its place in AllenNLP's `state_dict`
        self._elmo_lstm = self._make_lstm(weights, opening.requires_grad, opening.state)
        self._table: TableLookup | None = None
        self._warm_state, self._last_fingerprint = LastResult(), LastResult()
        self._spare = SpareVectors()
        self.token_table = opening.token_table

    @classmethod
    def from_files(cls, options_file: str | os.PathLike, weight_file: str | os.PathLike,
                   opening: ModelOptions | None = None, **arguments) -> "BiLm":
        """Read a model from two paths or URLs; other arguments are those of `BiLm`."""
        return cls.from_model(find_model(options_file=options_file, weight_file=weight_file), opening, **arguments)

    @classmethod
    def from_model(cls, model: str | os.PathLike | ModelFiles, opening: ModelOptions | None = None,
                   **arguments) -> "BiLm":
        """Read a model, an argument or a result of `find_model`; other arguments are those of `BiLm`."""
        opening = gathered(ModelOptions, arguments, opening)
        files = model if isinstance(model, ModelFiles) else find_model(check_path("model", model))
        if opening.allow_nonfinite:
            files = replace(files, allow_nonfinite=True)
        return cls._read(files, opening)

    @classmethod
    def _read(cls, files: ModelFiles, opening: ModelOptions) -> "BiLm":
        return cls(*read_model(files), opening)

    def _check(self, weights: Mapping[str, np.ndarray]) -> None:
        """Raise `ConfigurationError` for weights whose names or shapes do not match the options."""
        check_shapes("weights", expected_shapes(self.options, weights), weights)

    def _make_token_source(self, weights: Mapping[str, np.ndarray], requires_grad: bool) -> TokenSource:
        source = WordEmbedder if self.options.char_cnn is None else CharacterEncoder
        return source(self.options, weights, requires_grad)

    def _make_lstm(self, weights: Mapping[str, np.ndarray], requires_grad: bool, state: str) -> LstmStack:
        return LstmStack(self.options, weights, requires_grad, state)

    @property
    def state(self) -> str:
        """`carry`, `zero` or `warm`; may be set."""
        return self._elmo_lstm.state

    @state.setter
    def state(self, state: str) -> None:
        self._elmo_lstm.state = state

    @property
    def warm_text(self) -> tuple[Sequence[str], ...]:
        """The tokenized sentences before every text in state `warm`; may be set."""
        return self._warm_text

    @warm_text.setter
    def warm_text(self, text: Sequence[Sequence[str]]) -> None:
        self._warm_text = tuple(check_batch(text, "warm_text"))

    @property
    def token_source(self) -> TokenSource:
        """The char encoder, or the embedding of a model that reads word ids."""
        return self._token_embedder

    @property
    def lstm(self) -> LstmStack:
        """The LSTM layers and their carried states."""
        return self._elmo_lstm

    @property
    def token_encoder(self) -> TokenEncoder:
        """Computes vectors of tokens with the current table, device, backend and precision.

        Raises `RuntimeError` while a CUDA graph is captured, as all calls that need token vectors do.
        """
        refuse_capture(self._device)
        source = self._modules.get("_token_embedder")  # None if a user of cached words has deleted it
        return TokenEncoder(source, self._table, self._word_embedding, self._device, self.backend, self._precision)

    @property
    def token_table(self) -> TokenTable | None:
        """The table that token vectors come from, or None; may be set, also to a table's file.

        A table of another model or of a lower precision is refused. Calls are refused if the char encoder was changed
        after the table was set.
        """
        return None if self._table is None else self._table.table

    @token_table.setter
    def token_table(self, table: TokenTable | str | os.PathLike | None) -> None:
        self._table = None if table is None else self.token_encoder.look_up_in(table, self.fingerprint)

    @property
    def computes_in(self) -> str:
        """The precision of products without gradients: `highest` if the device does not support `precision`."""
        return self.token_encoder.computes_in

    def get_output_dim(self) -> int:
        """Values of one token in one layer: 2 P."""
        return self.options.output_dim

    def reset_states(self) -> None:
        """Forget the carried states."""
        self._elmo_lstm.reset_states()

    def cache_words(self, words: Sequence[str]) -> None:
        """Store the vectors of `words` for `forward(..., word_inputs=)`: word number k is `words[k]`, 0 is padding."""
        refuse_capture(self._device)
        check_sentence(words, "words")
        with torch.no_grad(), numerics(self._precision, self._device):
            ids = self._token_embedder.token_ids([*self._token_embedder.boundaries, *words]).to(self._device)
            vectors = torch.cat([self._token_embedder.encode_rows(rows, self.backend) for rows in ids.split(1024)])
        trained = self._elmo_lstm.B_0_0.requires_grad
        self._word_embedding = WordCache(vectors[2:], vectors[:2], trained)

    def warmup(self) -> None:
        """On a GPU, compile, load and tune the kernels and pack the weights, so that the first call is fast."""
        if self._device.type != "cuda":
            return
        stack, schedule = self._elmo_lstm, make_schedule(np.ones(1, dtype=np.int64))
        with torch.no_grad(), numerics(self._precision, self._device):
            self._token_embedder.warmup(self.backend)
            vectors = full_precision(stack.B_0_0).new_zeros(1, self._token_embedder.dim)
            stack.run(vectors, torch.from_numpy(schedule.tokens), schedule, stack.zero_state(1, vectors),
                      backend=self.backend, precision=self._precision)

    @outside_graphs
    @one_call()
    def forward(self, ids: torch.Tensor | None, boundaries: str = "add",
                word_inputs: torch.Tensor | None = None, *, state: str | None = None) -> BiLmOutput:
        """Representations of a batch of sentences given as ids.

        `ids` int [B, T, C] are character ids, 1 to 261 (word ids [B, T] for a model without characters, and also with
        a token table, whose ids are rows + 1), zero past a sentence's end. With `boundaries="add"`, `<S>` and `</S>`
        are put around every sentence, also an empty one, and the result has T + 2 positions; with `"present"` the ids
        include them and the result has T. `remove_boundaries` drops them. `word_inputs` int [B, T] are numbers of words
        given to `cache_words`, or otherwise ids of the token table, without boundaries; for a larger number the
        characters are read, and without larger numbers `ids` may be None. `state` is the state of this call, by default
        the model's. Raises `ValueError` for ids of another shape, type or range.

        If the inner modules (`_token_embedder`, `_word_embedding`, `_elmo_lstm`) have hooks, they are called as
        modules, with AllenNLP's arguments and results (see `hooked.forward`), except with `"present"`.

        Ids on a GPU are copied to the host, the only time that the call waits for the GPU. Raises `RuntimeError` while
        a CUDA graph is captured.
        """
        encoder, state = self.token_encoder, self._state_of_call(state)
        if boundaries == "add" and hooked.is_hooked(encoder.source, self._word_embedding, self._elmo_lstm):
            return hooked.forward(encoder, self._elmo_lstm, ids, word_inputs, state == "carry",
                                  self._initial_state(state))
        vectors, index, mask = (encoder.batch(ids, boundaries, self._kept_vectors(encoder)) if word_inputs is None
                                else encoder.numbered_batch(word_inputs, ids))
        layers = self._run_batch(vectors, index, mask.sum(1).numpy(), state, mask.flatten())
        return BiLmOutput([layer.view(*mask.shape, layer.shape[1]) for layer in layers], to_device(mask, self._device))

    @outside_graphs
    def encode(self, tokens: Sequence[str]) -> torch.Tensor:
        """Vectors of tokens without context: [tokens, P]."""
        return self.token_encoder.strings(check_sentence(tokens, "tokens"))

    @outside_graphs
    def encode_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors without context of tokens given as ids above zero: int [N, C], or word ids [N] -> [N, P]."""
        vectors, index, _ = self.token_encoder.batch(ids[None], "present")
        return vectors[index]

    @outside_graphs
    @one_call()
    def embed_tokens(self, batch: Sequence[Sequence[str]],
                     state: str | None = None) -> tuple[list[torch.Tensor], np.ndarray]:
        """Representations of tokenized sentences, laid end to end with their boundaries.

        Returns a list of [N, 2 P], token layer first, and the positions of each sentence, int64 [sentences],
        `<S>` and `</S>` included. `state` is that of this call, by default the model's.
        """
        state, (first, last) = self._state_of_call(state), self._token_embedder.boundaries
        unique, index, lengths = number_tokens((first, *sentence, last) for sentence in check_batch(batch))
        return self._run_batch(self.token_encoder.strings(unique), torch.from_numpy(index), lengths, state), lengths

    @outside_graphs
    def begin(self, slots: int, state: str | None = None) -> RunState:
        """The state in which `slots` slots start; `state` is by default the model's."""
        refuse_capture(self._device)
        state, like = self._state_of_call(state), full_precision(self._elmo_lstm.B_0_0)
        return self._elmo_lstm.begin(slots, like, state == "carry", self._initial_state(state))

    @one_call()
    def run(self, vectors: torch.Tensor, rows: torch.Tensor, schedule: Schedule, state: RunState | None = None,
            addresses: np.ndarray | None = None) -> tuple[list[torch.Tensor], RunState]:
        """Outputs of the LSTM layers at every packed row of the schedule, [S, 2 P] each, and the state after the last.

        `vectors` [R, P] come from `token_encoder`; `rows` int [2, S], best on the host, are the rows that the two
        directions read. The slots start from `state`, by default the result of `begin`. The carried states do not
        change: `lstm.store_state` changes them.

        With `addresses` uint64 [L, 2, S], where `can_write`, the list is empty: each layer writes the output of each
        direction, float32 [P], at each packed row to its address, in memory that the caller keeps.
        """
        stack = self._elmo_lstm
        if state is None:
            state = self.begin(schedule.slots.size)
        if addresses is not None:
            last = stack.write(vectors, rows.numpy(), schedule, *state, addresses, self._precision)
            return [], RunState(last, state.initial)
        with numerics(self._precision, vectors.device):
            layers, last = stack.run(vectors, rows, schedule, *state, self.backend, self._precision)
        return layers, RunState(last, state.initial)

    @property
    def can_write(self) -> bool:
        """Whether `run` takes `addresses`: in the C++ engine, on the CPU and without gradients."""
        return self._elmo_lstm.can_write(self.backend)

    def _kept_vectors(self, encoder: TokenEncoder) -> KeptVectors | None:
        """Vectors of character ids that are kept between calls, where a token's bits do not depend on its batch."""
        if encoder.source is None or needs_gradient(encoder.source.parameters()) or not self.can_write:
            return None
        return functools.partial(vectors_of_ids, self._spare, encoder.key)

    def _run_batch(self, vectors: torch.Tensor, index: torch.Tensor, lengths: np.ndarray, state: str,
                   mask: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Representations of sentences laid end to end: a list of [N, 2 P], token layer first.

        `index` int [N], best on the host, is the row of `vectors` [R, P] at each position, `lengths` int [sentences]
        count the positions. With `mask` bool [M], on the host, the result is [M, 2 P], zero where the mask is False.
        Sentence k runs in slot k; if `state` is `carry`, the carried states are replaced.
        """
        schedule = batch_schedule(lengths)
        rows = index[to_device(schedule.tokens, index.device).long()]  # [2, S]
        places = None if mask is None else mask.nonzero().squeeze(1)  # [N]
        addresses = None
        if self.can_write and not needs_gradient([vectors]):
            made, addresses = layers_to_write(vectors[index], schedule.tokens, self.num_layers, places,
                                              len(index) if mask is None else len(mask))
        with self._elmo_lstm.exclusive(state == "carry"):
            layers, (last, _) = self.run(vectors, rows, schedule, self.begin(schedule.slots.size, state), addresses)
            if state == "carry":
                self._elmo_lstm.store_state(last)
        device, dtype = vectors.device, self._elmo_lstm.B_0_0.dtype
        if addresses is not None:
            return [layer.to(dtype) for layer in made]
        order = to_device(schedule.tokens, device).long()
        token_layer = vectors[to_device(index, device)]  # [N, P]
        layers = [torch.cat([token_layer, token_layer], dim=1), *(in_text_order(layer, order) for layer in layers)]
        if places is not None:
            places = to_device(places, device)
            layers = [layer.new_zeros(len(mask), layer.shape[1]).index_copy(0, places, layer) for layer in layers]
        return [layer.to(dtype) for layer in layers]

    @property
    def _device(self) -> torch.device:
        return self._elmo_lstm.B_0_0.device

    @property
    def _precision(self) -> str:
        dtype = self._elmo_lstm.B_0_0.dtype
        return self.precision if dtype in (torch.float32, torch.float64) else "medium"

    def _layers(self) -> list[Tensors]:
        """All weights, by the layer that reads them."""
        return [*self._token_embedder.layers(), *self._elmo_lstm.layers()]

    def _state_of_call(self, state: str | None) -> str:
        """The state that a call names, by default the model's."""
        return self.state if state is None else check_choice("state", state, STATES)

    def _initial_state(self, state: str | None = None) -> State | None:
        """(h [L, 2 P], c [L, 2 D]) after the warm text if `state` is `warm`, otherwise None."""
        if self._state_of_call(state) != "warm":
            return None
        text = tuple(map(tuple, self.warm_text))
        return self._warm_state.get(text, self._layers(), lambda: self._run_warm_text(text))

    @torch.inference_mode(False)  # the state is kept, and a training step may read it
    def _run_warm_text(self, text: Sequence[Sequence[str]]) -> State:
        """The state after the warm text, in precision `highest` also inside a call of lower precision."""
        first, last = self._token_embedder.boundaries
        tokens = [token for sentence in text for token in (first, *sentence, last)]
        lengths = np.array([len(sentence) + 2 for sentence in text])
        with torch.no_grad(), numerics("highest", self._device):
            ids = to_device(self._token_embedder.token_ids(tokens), self._device)
            vectors = self._token_embedder.encode_rows(ids, self.backend)
            schedule = make_schedule(lengths, np.zeros_like(lengths))
            zeros = self._elmo_lstm.zero_state(1, vectors)
            _, (h, c) = self._elmo_lstm.run(vectors, torch.from_numpy(schedule.tokens), schedule, zeros,
                                            backend=self.backend)
        return h[:, 0], c[:, 0]
