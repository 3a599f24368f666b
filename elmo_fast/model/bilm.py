"""The bidirectional language model: token ids to the representations of every layer."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from elmo_fast.model import captured
from elmo_fast.model.allennlp_names import require_data
from elmo_fast.model.fingerprint import fingerprint
from elmo_fast.model.layout import BiLmOutput, in_text_order
from elmo_fast.model.lstm import LstmStack, InputProjections
from elmo_fast.model.options import ConfigurationError, Options
from elmo_fast.model.sources import ModelFiles, find_model
from elmo_fast.model.states import WARM_TEXT
from elmo_fast.model.token_inputs import TokenInputs, check_shape
from elmo_fast.model.token_lookup import TokenEmbeddings
from elmo_fast.model.token_source import CharacterEncoder, TokenSource, WordEmbedder
from elmo_fast.model.token_table import TokenTable
from elmo_fast.model.warm import WarmState, edit_keys
from elmo_fast.model.weights import check_weights, read_weights
from elmo_fast.model.word_cache import WordCache
from elmo_fast.ops.backend import check_backend, resolve, why_not
from elmo_fast.ops.device import is_capturing, to_device
from elmo_fast.ops.linear import computes_in
from elmo_fast.ops.precision import check_precision, full_precision, numerics
from elmo_fast.ops.reference import State
from elmo_fast.ops.schedule import Schedule, make_schedule
from elmo_fast.text import characters
from elmo_fast.text.batching import number_tokens


class BiLm(nn.Module):
    """A bidirectional language model (Peters et al. 2018) with bilm-tf's weights.

    `state` says where a sentence starts. `carry`: row k of a batch starts where row k of the last batch ended, as
    in bilm-tf and AllenNLP. `zero`: from zeros. `warm`: from the state that `warm_text` leaves behind when it runs
    from zeros, computed once and again when weights change. Zero and warm do not depend on order or batch mates.

    `precision` is `highest` (IEEE fp32), `high` or `medium`; `backend` is `auto`, `reference`, `torch` or
    `native`. 16-bit parameters (`.half()`, `.bfloat16()`) run as `medium` from the rounded weights, which is fp32 on
    a CPU without AMX; activations then have the parameters' type, states stay fp32.

    `weights` are arrays by dataset name (`read_weights`); they are copied. With `keep_fp32=False` the large matrices
    stay in memory only as the native engine packs them: for inference on the CPU, not to be saved, moved or trained.
    """

    def __init__(
        self,
        options: Options,
        weights: Mapping[str, np.ndarray],
        *,
        state: str = "carry",
        precision: str = "highest",
        backend: str = "auto",
        requires_grad: bool = False,
        warm_text: Sequence[Sequence[str]] = WARM_TEXT,
        keep_fp32: bool = True,
        token_table: TokenTable | str | os.PathLike | None = None,
    ):
        super().__init__()
        check_weights(weights, options)
        self.options = options
        self.precision = check_precision(precision)
        self.backend = check_backend(backend)
        self.warm_text = warm_text
        # The two attribute names are AllenNLP's: users reach for them, and its checkpoints hold them.
        self._token_embedder = self._make_token_source(weights, requires_grad)
        self._elmo_lstm = self._make_lstm(weights, requires_grad, state)
        self._word_embedding: WordCache | None = None
        self._warm = WarmState()
        self._fingerprint: tuple[tuple, str] | None = None
        self._inputs = TokenInputs()
        self._warmed_up: captured.WarmedUp | None = None
        self.token_table = token_table
        if not keep_fp32:
            self._drop_fp32()

    @classmethod
    def from_files(cls, options_file: str | os.PathLike, weight_file: str | os.PathLike, **arguments) -> "BiLm":
        """Read a model from two paths or URLs; `arguments` are those of `BiLm`."""
        return cls._read(find_model(options_file=options_file, weight_file=weight_file), **arguments)

    @classmethod
    def from_model(cls, model: str | os.PathLike | ModelFiles, **arguments) -> "BiLm":
        """Read a model from what `find_model` takes or has found; `arguments` are those of `BiLm`."""
        return cls._read(model if isinstance(model, ModelFiles) else find_model(model), **arguments)

    @classmethod
    def _read(cls, files: ModelFiles, **arguments) -> "BiLm":
        options = Options.from_file(files.options_file)
        return cls(options, read_weights(files.weight_file, options), **arguments)

    def _make_token_source(self, weights: Mapping[str, np.ndarray], requires_grad: bool) -> TokenSource:
        source = WordEmbedder if self.options.char_cnn is None else CharacterEncoder
        return source(self.options, weights, requires_grad)

    def _make_lstm(self, weights: Mapping[str, np.ndarray], requires_grad: bool, state: str) -> LstmStack:
        return LstmStack(self.options, weights, requires_grad, state)

    @property
    def num_layers(self) -> int:
        """Layers of representations, the token layer included."""
        return self.options.n_layers

    @property
    def state(self) -> str:
        """`carry`, `zero` or `warm`; may be set."""
        return self._elmo_lstm.state

    @state.setter
    def state(self, state: str) -> None:
        self._elmo_lstm.state = state

    @property
    def token_source(self) -> TokenSource:
        """What gives tokens their vectors: the char encoder, or a table of words."""
        return self._token_embedder

    @property
    def token_table(self) -> TokenTable | None:
        """The table that token vectors come from, or None; may be set, also to a table's file.

        A table of another model or of a lower precision is refused, and so is one whose char encoder was changed after
        it was set.
        """
        return self._inputs.table

    @token_table.setter
    def token_table(self, table: TokenTable | str | os.PathLike | None) -> None:
        self._inputs.take_table(table, self._token_embedder, self._elmo_lstm, self.fingerprint, self.backend,
                                self._precision)

    @property
    def computes_in(self) -> str:
        """What products without gradients are computed in here: `highest` where the device has none in `precision`."""
        return computes_in(self._elmo_lstm.B_0_0, self.backend, self._precision)

    def get_output_dim(self) -> int:
        """Values of one token in one layer: 2 P."""
        return self.options.output_dim

    def fingerprint(self) -> str:
        """32 hexadecimal digits of the network's options and all weights as they are now."""
        key = self._weights_key()
        if self._fingerprint is None or self._fingerprint[0] != key:
            self._fingerprint = key, fingerprint(self.options, self.weights())
        return self._fingerprint[1]

    def reset_states(self) -> None:
        """Forget the carried states."""
        self._elmo_lstm.reset_states()

    def warmup(self, batch_size: int = 0) -> None:
        """On a GPU, load and tune kernels and prepare weights now: the first call is then fast, and a capture possible.

        A CUDA graph of a forward, of whatever shape, can be captured after this alone, and after it again when weights,
        device, precision, backend or state have changed. Carried states have a place for as many sentences as any
        batch had so far; `batch_size` makes place for more of them, which start from zeros.
        """
        if self._device.type != "cuda":
            return
        with torch.no_grad(), numerics(self._precision, self._device):
            if self._why_no_capture():
                self._token_embedder.warmup(self.backend)
            else:
                self._prepare_capture(batch_size)

    def _prepare_capture(self, batch_size: int) -> None:
        if self.state == "warm":
            self._warm_state()
        boundaries = captured.warm_up(self._token_embedder, self._elmo_lstm, self.backend, self._precision)
        self._elmo_lstm.reserve_states(batch_size)
        self._warmed_up = captured.WarmedUp(self._capture_key(), boundaries)

    def _why_no_capture(self) -> str | None:
        """None where a CUDA graph can capture a forward, else what stands against it."""
        reason = why_not("projected_lstm", "native", [self._elmo_lstm.B_0_0])
        return reason or (None if self.backend in ("auto", "native") else "it runs in plain PyTorch")

    def _capture_key(self) -> tuple:
        text = tuple(map(tuple, self.warm_text)) if self.state == "warm" else None
        return self._device, self._precision, self.backend, text, self._weights_key()

    def weights(self) -> dict[str, np.ndarray]:
        """The weights by dataset name, float32, in file order; `write_weights` gives a file that loads anywhere."""
        parts = (self._token_embedder, self._elmo_lstm)
        for part in parts:
            require_data(part._parameters)
        return {name: getattr(part, own).detach().float().cpu().numpy()
                for part in parts for own, name in part.datasets.items()}

    def cache_words(self, words: Sequence[str]) -> None:
        """Keep the vectors of `words` for `forward(..., word_inputs=)`: word number k is `words[k]`, 0 is padding."""
        with torch.no_grad(), numerics(self._precision, self._device):
            marks = [characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN]
            ids = self._token_embedder.token_ids([*marks, *words]).to(self._device)
            vectors = torch.cat([self._token_embedder(piece, self.backend) for piece in ids.split(1024)])
        trained = self._elmo_lstm.B_0_0.requires_grad
        self._word_embedding = WordCache(vectors[2:], vectors[:2], trained)

    def forward(self, ids: torch.Tensor | None, boundaries: str = "add",
                word_inputs: torch.Tensor | None = None) -> BiLmOutput:
        """Representations of a batch of sentences given as ids.

        `ids` int [B, T, C] are character ids, 1 to 261 (word ids [B, T] for a model without characters, and also with
        a token table, whose rows + 1 they then are), zero past a sentence's end. With `boundaries="add"`, `<S>` and
        `</S>` are put around every sentence, also an empty one, and the result has T + 2 positions; with `"present"`
        the ids carry them and the result has T. `remove_boundaries` drops them. `word_inputs` int [B, T] are numbers
        of words given to `cache_words`, or else ids of the token table, without boundaries; a number beyond them is
        read off the characters, and without such numbers `ids` may be None. Raises `ValueError` for ids of another
        shape, type or range.

        Ids on a GPU are copied back once, and nothing else is waited for. While a CUDA graph is captured nothing is:
        then shapes are static, every position is computed, and ids are not checked (see `warmup` and `captured`).
        """
        if is_capturing(self._device):
            return self._forward_captured(ids, boundaries, word_inputs)
        with numerics(self._precision, self._device):
            if word_inputs is not None:
                tokens = self._inputs.word_numbers(word_inputs, ids, self._word_embedding, self._token_embedder,
                                                   self._device, self.backend)
            else:
                tokens = self._inputs.batch(ids, boundaries, self._token_embedder, self._device, self.backend)
        found, index, mask = tokens
        layers = self.run(found.vectors, index, mask.sum(1).numpy(), products=self.first_layer(found))
        places = to_device(mask.flatten().nonzero().squeeze(1), self._device)  # [N], where each token stands in [B * T]
        padded = [each.new_zeros(mask.numel(), each.shape[1]).index_copy(0, places, each) for each in layers]
        return BiLmOutput([each.view(*mask.shape, each.shape[1]) for each in padded],
                          to_device(mask, self._device))

    def _forward_captured(self, ids: torch.Tensor, boundaries: str, word_inputs: torch.Tensor | None) -> BiLmOutput:
        if word_inputs is not None:
            raise ValueError("word_inputs: expected None while a CUDA graph is captured, got a tensor")
        check_shape(ids, boundaries, self._token_embedder)
        if ids.device != self._device:
            raise ValueError(f"ids: expected ids on {self._device} while a CUDA graph is captured, got {ids.device}")
        if reason := self._why_no_capture():
            raise RuntimeError("backend: expected one that a CUDA graph can capture, 'native' or 'auto', got "
                               f"{self.backend!r}: {reason}")
        prepared = captured.WarmedUp.check(self._warmed_up, self._capture_key())
        around = prepared.boundaries or self._token_embedder.boundary_ids() if boundaries == "add" else None
        with numerics(self._precision, self._device):
            fresh = self._warm_state() if self.state == "warm" else None
            layers, mask = captured.forward(self._token_embedder, self._elmo_lstm, ids, around, fresh, self.backend,
                                            self._precision)
        return BiLmOutput([each.to(self._elmo_lstm.B_0_0.dtype) for each in layers], mask)

    def encode(self, tokens: Sequence[str]) -> torch.Tensor:
        """Vectors of tokens without context: [tokens, P]."""
        return self.look_up(tokens).vectors

    def encode_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors without context of tokens given as ids, none of them zero: int [N, C], or word ids [N] -> [N, P]."""
        with numerics(self._precision, self._device):
            found, index, _ = self._inputs.batch(ids[None], "present", self._token_embedder, self._device, self.backend)
        return found.vectors[index]

    def look_up(self, tokens: Sequence[str]) -> TokenEmbeddings:
        """Vectors of tokens without context, and the rows of the token table that they came from."""
        with numerics(self._precision, self._device):
            return self._inputs.strings(tokens, self._token_embedder, self._device, self.backend)

    def first_layer(self, found: TokenEmbeddings) -> InputProjections | None:
        """What the first LSTM layer's weights make of token vectors, where a small token table has it all."""
        with numerics(self._precision, self._device):
            return self._inputs.first_layer(found, self.backend, self._precision)

    def embed_tokens(self, batch: Sequence[Sequence[str]]) -> tuple[list[torch.Tensor], np.ndarray]:
        """Representations of tokenized sentences, laid end to end with their boundaries.

        Returns a list of [N, 2 P], token layer first, and the positions of each sentence, int64 [sentences],
        `<S>` and `</S>` included.
        """
        unique, index, lengths = number_tokens(
            (characters.BEGIN_SENTENCE_TOKEN, *sentence, characters.END_SENTENCE_TOKEN) for sentence in batch)
        found = self.look_up(unique)
        return self.run(found.vectors, torch.from_numpy(index), lengths, products=self.first_layer(found)), lengths

    def begin(self, slots: int) -> tuple[State, State | None]:
        """The state that `slots` slots begin in, and the one every sentence restarts from unless states are carried."""
        fresh = self._warm_state() if self.state == "warm" else None
        return self._elmo_lstm.begin(slots, fresh, full_precision(self._elmo_lstm.B_0_0))

    def advance(self, vectors: torch.Tensor, schedule: Schedule, state: State, initial_state: State | None,
                products: InputProjections | None = None) -> tuple[list[torch.Tensor], State]:
        """Run some steps of slots: the LSTM layers at every packed row, [S, 2 P] each, and the state after the last.

        `schedule.tokens` are rows of `vectors` [R, P]; `products` are those of `first_layer` for the vectors. Nothing
        is carried on: `store_state` does that.
        """
        rows = torch.from_numpy(schedule.tokens)
        with numerics(self._precision, vectors.device):
            return self._elmo_lstm.run(vectors, rows, schedule, state, initial_state, self.backend, self._precision, products)

    def store_state(self, state: State) -> None:
        """Keep the state that slots ended in for the next call, where states are carried."""
        self._elmo_lstm.store_state(state)

    def run(self, vectors: torch.Tensor, index: torch.Tensor, lengths: np.ndarray,
            slots: np.ndarray | None = None, products: InputProjections | None = None) -> list[torch.Tensor]:
        """Representations of sentences laid end to end, without padding: a list of [N, 2 P], token layer first.

        `vectors` [R, P] are token vectors, `index` int [N] the row of each position (best on the host), `lengths` int [sentences]
        count the positions, boundaries included. Sentence k runs in slot k of the carried states, or in slot
        `slots[k]`, one after the other. `products` are those of `first_layer` for the vectors.
        """
        fresh = self._warm_state() if self.state == "warm" else None
        with numerics(self._precision, vectors.device):
            schedule = make_schedule(lengths, slots)
            rows = index[to_device(schedule.tokens, index.device).long()]  # [2, S]
            layers = self._elmo_lstm(vectors, rows, schedule, fresh, self.backend, self._precision, products)
            order = to_device(schedule.tokens, vectors.device).long()
            tokens = vectors[to_device(index, vectors.device)]  # [N, P]
            dtype = self._elmo_lstm.B_0_0.dtype
            return [torch.cat([tokens, tokens], dim=1).to(dtype), *(in_text_order(each, order).to(dtype) for each in layers)]

    @property
    def _device(self) -> torch.device:
        return self._elmo_lstm.B_0_0.device

    @property
    def _precision(self) -> str:
        dtype = self._elmo_lstm.B_0_0.dtype
        return self.precision if dtype in (torch.float32, torch.float64) else "medium"

    def _warm_state(self) -> State:
        return self._warm.after(self.warm_text, self._token_embedder, self._elmo_lstm, self.backend)

    def _weights_key(self) -> tuple:
        return edit_keys(self._token_embedder, self._elmo_lstm)

    def _drop_fp32(self) -> None:
        if self.options.char_cnn is None or resolve("projected_lstm", self.backend, self._elmo_lstm.B_0_0) != "native":
            raise ConfigurationError("keep_fp32: expected True, since fp32 weights can be dropped only where the native "
                                     "engine runs a char-input model, got False")
        if self.state == "warm":
            self._warm_state()
        known = self.fingerprint()
        self._token_embedder.drop_fp32(self._precision)
        self._elmo_lstm.drop_fp32(self._precision)
        self._fingerprint = self._weights_key(), known
        self._warm.hold(self.warm_text, self._token_embedder, self._elmo_lstm)
