"""The bidirectional language model: token ids to the representations of every layer."""

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from elmo_fast.arguments import STATES, StateName, check_choice, check_path, gathered
from elmo_fast.engine.backend import check_backend
from elmo_fast.engine.model import RunState
from elmo_fast.engine.precision import check_precision
from elmo_fast.engine.schedule import batch_schedule, make_schedule
from elmo_fast.engine.table import TokenTable
from elmo_fast.engine.tokens import SpareVectors
from elmo_fast.nn import by_parts
from elmo_fast.nn.at_rest import Now, parameter_of
from elmo_fast.nn.layers.batch_layout import BiLmOutput
from elmo_fast.nn.layers.encoder import CharacterEncoder, TokenSource, WordEmbedder
from elmo_fast.nn.layers.lstm import ElmoLstm
from elmo_fast.nn.lookup import TableLookup, TokenEncoder
from elmo_fast.nn.outside_graphs import OutsideGraphs, outside_graphs
from elmo_fast.ops import trial
from elmo_fast.ops.backend import needs_gradient
from elmo_fast.ops.device import to_device
from elmo_fast.ops.forked import threads_of_a_child
from elmo_fast.ops.numerics import full_precision, numerics
from elmo_fast.ops.projected_lstm.reference import State
from elmo_fast.text.batching import check_batch, check_sentence, number_tokens
from elmo_fast.weights.datasets import check_shapes, expected_shapes, fingerprint, read_model
from elmo_fast.weights.opening import WARM_TEXT, ModelOptions
from elmo_fast.weights.options import Options
from elmo_fast.weights.sources import ModelFiles, find_model


class BiLm(OutsideGraphs):
    """A bidirectional language model (Peters et al. 2018) with bilm-tf's weights and AllenNLP's parts and parameters.

    `weights` are arrays by dataset name (`read_weights`); they are copied, and not checked for NaN and infinities.
    Further `arguments` are fields of `ModelOptions`, and replace those of `opening`. Without options, a subclass makes
    the parts: `_token_embedder`, `_word_embedding` and `_elmo_lstm`.

    16-bit parameters (`.half()`, `.bfloat16()`) are used as they are, in `precision`, on a CPU; on a GPU they run in
    `medium`. Vectors then have the parameters' type, states stay fp32.
    """

    precision, backend = "highest", "auto"
    _encoder: ClassVar[type[CharacterEncoder]] = CharacterEncoder
    _warm_text = tuple(WARM_TEXT)
    _table: TableLookup | None = None
    _warm: tuple[tuple, State] | None = None  # what the state after the warm text was computed from, and the state

    def __init__(self, options: Options | None = None, weights: Mapping[str, np.ndarray] | None = None,
                 opening: ModelOptions | None = None, **arguments):
        super().__init__()
        self._spare = SpareVectors()
        if options is not None:
            self._set(options, weights, gathered(ModelOptions, arguments, opening))

    @threads_of_a_child()
    def _set(self, options: Options, weights: Mapping[str, np.ndarray], opening: ModelOptions) -> None:
        self.options, self.num_layers = options, options.n_layers  # layers of representations, the token layer included
        self.precision, self.backend = check_precision(opening.precision), check_backend(opening.backend)
        self.warm_text = opening.warm_text
        self._check(weights)
        source = WordEmbedder if options.char_cnn is None else self._encoder
        choice = self.precision, self.backend
        self._token_embedder = source.of_weights(options, weights, opening.requires_grad, *choice)
        self._modules["_word_embedding"] = None  # its place in AllenNLP's `state_dict`
        self._elmo_lstm = ElmoLstm.of_weights(options.lstm, weights, opening.requires_grad, opening.state, *choice)
        self.token_table = opening.token_table

    def _check(self, weights: Mapping[str, np.ndarray]) -> None:
        """Raise `ConfigurationError` for weights whose names or shapes do not match the options."""
        check_shapes("weights", expected_shapes(self.options, weights), weights)

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
        return cls._read(files, opening)

    @classmethod
    def _read(cls, files: ModelFiles, opening: ModelOptions) -> "BiLm":
        return cls(*read_model(files, opening.allow_nonfinite), opening)

    # ---- parts and attributes ----------------------------------------------------------------------------------------

    @property
    def token_source(self) -> TokenSource:
        """The char encoder, or the embedding of a model that reads word ids."""
        return self._token_embedder

    @property
    def state(self) -> StateName:
        """`carry`, `zero` or `warm`; may be set."""
        return getattr(self._elmo_lstm, "state", "carry")

    @state.setter
    def state(self, state: StateName) -> None:
        self._elmo_lstm.state = state

    @property
    def warm_text(self) -> tuple[Sequence[str], ...]:
        """The tokenized sentences before every text in state `warm`; may be set."""
        return self._warm_text

    @warm_text.setter
    def warm_text(self, text: Sequence[Sequence[str]]) -> None:
        self._warm_text = tuple(check_batch(text, "warm_text"))

    @property
    def token_table(self) -> TokenTable | None:
        """The table that token vectors come from, or None; may be set, also to a table's file.

        A table of another model or of a lower precision is refused. Calls are refused if the char encoder was changed
        after the table was set.
        """
        return None if self._table is None else self._table.table

    @token_table.setter
    def token_table(self, table: TokenTable | str | os.PathLike | None) -> None:
        self._table = None if table is None else TokenEncoder.of(self).look_up_in(table, self.fingerprint)

    @property
    def _precision(self) -> str:
        like = parameter_of(self)
        return "medium" if like.device.type != "cpu" and full_precision(like) is not like else self.precision

    def get_output_dim(self) -> int:
        """Values of one token in one layer: 2 P."""
        return self.options.output_dim

    def reset_states(self) -> None:
        """Forget the carried states."""
        self._elmo_lstm.reset_states()

    @threads_of_a_child()
    def weights(self) -> dict[str, np.ndarray]:
        """The weights by dataset name, float32, in file order; `write_weights` gives a file that loads anywhere."""
        with torch.no_grad():
            weights = {**self._token_embedder.weights(), **self._elmo_lstm.weights()}
            return {name: value.detach().float().cpu().numpy().copy() for name, value in weights.items()}

    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify the network's options and the current weights."""
        return fingerprint(self.weights(), self.options)

    def warmup(self) -> None:
        """On a GPU, wait for the trial of its kernels, compile and load them, and pack the weights."""
        if parameter_of(self).device.type == "cuda":
            with torch.no_grad(), trial.waiting():
                self._token_embedder.warmup(self.backend)
                self.embed_tokens([[]], "zero")

    # ---- calls -------------------------------------------------------------------------------------------------------

    @outside_graphs
    @threads_of_a_child()
    def forward(self, ids: torch.Tensor | None, boundaries: str = "add",
                word_inputs: torch.Tensor | None = None, *, state: StateName | None = None) -> BiLmOutput:
        """Representations of a batch of sentences given as ids.

        `ids` int [B, T, C] are character ids, 1 to 261 (word ids [B, T] for a model without characters, and also with
        a token table, whose ids are rows + 1), zero past a sentence's end. With `boundaries="add"`, `<S>` and `</S>`
        are put around every sentence, also an empty one, and the result has T + 2 positions; with `"present"` the ids
        include them and the result has T. `remove_boundaries` drops them. `word_inputs` int [B, T] are numbers of words
        that `Elmo` has cached, or otherwise ids of the token table, without boundaries; for a larger number the
        characters are read, and without larger numbers `ids` may be None. `state` is the state of this call, by default
        the model's. Raises `ValueError` for ids of another shape, type or range.

        If a part (`_token_embedder`, `_word_embedding`, `_elmo_lstm`) or a part of it has hooks or was replaced, the
        parts are called as modules, with AllenNLP's arguments and results; with `"present"` the LSTM alone.

        Ids on a GPU are copied to the host, the only time that the call waits for the GPU. Raises `RuntimeError` while
        a CUDA graph is captured.
        """
        encoder, lstm, state = TokenEncoder.of(self), self._lstm_now(), self._state_of_call(state)
        if boundaries == "add" and not by_parts.is_plain(encoder, lstm):
            return by_parts.forward(encoder, self._elmo_lstm, ids, word_inputs, state == "carry",
                                    self._initial_state(state))
        vectors, index, mask = (encoder.batch(ids, boundaries, self._kept_vectors(encoder, lstm))
                                if word_inputs is None else encoder.numbered_batch(word_inputs, ids))
        initial = self._initial_state(state, encoder.now, lstm)
        layers = self._run_batch(vectors, index, mask.sum(1).numpy(), state, initial, lstm, mask.flatten())
        return BiLmOutput([layer.view(*mask.shape, layer.shape[1]) for layer in layers],
                          to_device(mask, encoder.device))

    @outside_graphs
    @threads_of_a_child()
    def encode(self, tokens: Sequence[str]) -> torch.Tensor:
        """Vectors of tokens without context: [tokens, P]."""
        return TokenEncoder.of(self).strings(check_sentence(tokens, "tokens"))

    @outside_graphs
    @threads_of_a_child()
    def embed_tokens(self, batch: Sequence[Sequence[str]],
                     state: StateName | None = None) -> tuple[list[torch.Tensor], np.ndarray]:
        """Representations of tokenized sentences, laid end to end with their boundaries.

        Returns a list of [N, 2 P], token layer first, and the positions of each sentence, int64 [sentences],
        `<S>` and `</S>` included. `state` is that of this call, by default the model's.
        """
        state, (first, last) = self._state_of_call(state), self._token_embedder.boundaries
        unique, index, lengths = number_tokens((first, *sentence, last) for sentence in check_batch(batch))
        encoder, lstm = TokenEncoder.of(self), self._lstm_now()
        initial = self._initial_state(state, encoder.now, lstm)
        layers = self._run_batch(encoder.strings(unique), torch.from_numpy(index), lengths, state, initial, lstm)
        return layers, lengths

    def _lstm_now(self) -> Now | None:
        """What a call finds of the LSTM, None for one that is not ours."""
        return self._elmo_lstm.now() if isinstance(self._elmo_lstm, ElmoLstm) else None

    def _kept_vectors(self, encoder: TokenEncoder, lstm: Now | None) -> SpareVectors | None:
        """Vectors of character ids that are kept between calls, where a token's bits do not depend on its batch."""
        return self._spare if (encoder.now and lstm and lstm.is_plain and not needs_gradient(encoder.now.tensors)
                               and self._elmo_lstm.can_write(self.backend, lstm)) else None

    def _run_batch(self, vectors: torch.Tensor, index: torch.Tensor, lengths: np.ndarray, state: str,
                   initial: State | None, now: Now | None, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Representations of sentences laid end to end: a list of [N, 2 P], token layer first.

        `index` int [N], best on the host, is the row of `vectors` [R, P] at each position, `lengths` int [sentences]
        count the positions. With `mask` bool [M], on the host, the result is [M, 2 P], zero where the mask is False.
        Sentence k runs in slot k; if `state` is `carry`, the carried states are replaced. `initial` is
        `_initial_state`, `now` what the call finds of the LSTM.
        """
        schedule, lstm, dtype = batch_schedule(lengths), self._elmo_lstm, parameter_of(self).dtype
        if now is None or not now.is_plain:
            outputs = by_parts.run(lstm, vectors[index], lengths, state == "carry", initial)
            return outputs if mask is None else [layer.new_zeros(len(mask), layer.shape[1]).masked_scatter(
                mask[:, None].to(layer.device), layer) for layer in outputs]
        with lstm.exclusive(state == "carry"):
            begin = lstm.begin(schedule.slots.size, full_precision(parameter_of(self)), state == "carry", initial)
            layers, last = lstm.run_in_text_order(vectors, index, schedule, begin, self.backend, self._precision,
                                                  mask, now)
            if lstm.stores(state == "carry", begin.initial if state == "warm" else None):
                lstm.store_state(last)
        return [layer.to(dtype) for layer in layers]

    def _state_of_call(self, state: StateName | None) -> StateName:
        """The state that a call names, by default the model's."""
        return self.state if state is None else check_choice("state", state, STATES)

    def _initial_state(self, state: str, source: Now | None = None, lstm: Now | None = None) -> State | None:
        """(h [L, 2 P], c [L, 2 D]) after the warm text if `state` is `warm`, otherwise None.

        `source` and `lstm` are what the call finds of the parts.
        """
        if state != "warm":
            return None
        if not isinstance(self._token_embedder, TokenSource) or not isinstance(self._elmo_lstm, ElmoLstm):
            raise RuntimeError("state: expected 'carry' or 'zero' for a biLM whose parts were replaced, got 'warm'")
        parts = source or self._token_embedder.now(), lstm or self._elmo_lstm.now()
        made_of = (self.warm_text, self.backend, *(part.get("key", object) for part in parts))
        warm = self._warm
        if warm is None or warm[0] != made_of:
            self._warm = warm = made_of, self._run_warm_text()
        return warm[1]

    @torch.inference_mode(False)  # the state is kept, and a training step may read it
    def _run_warm_text(self) -> State:
        """The state after the warm text, in precision `highest` also inside a call of lower precision."""
        source, lstm, (first, last) = self._token_embedder, self._elmo_lstm, self._token_embedder.boundaries
        tokens = [token for sentence in self.warm_text for token in (first, *sentence, last)]
        lengths = np.array([len(sentence) + 2 for sentence in self.warm_text])
        device = parameter_of(self).device
        with torch.no_grad(), numerics("highest", device):
            vectors = source.encode_rows(to_device(source.token_ids(tokens), device), self.backend)
            schedule = make_schedule(lengths, np.zeros_like(lengths))
            begin = RunState(lstm.zero_state(1, full_precision(vectors)), None)
            if not lstm.now().is_ours:
                h, c = by_parts.state_after(lstm, vectors, lengths)
            else:
                index = torch.arange(len(tokens), device=device)
                _, (h, c) = lstm.run_in_text_order(vectors, index, schedule, begin, self.backend)
        return h[:, 0], c[:, 0]

    def __getstate__(self) -> dict:
        return {name: value for name, value in super().__getstate__().items() if name != "_warm"}
