"""`ElmoEmbedder`: tokenized sentences to NumPy arrays and HDF5 files, as AllenNLP's class of that name."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np
import torch

from elmo_fast.arguments import (
    DEFAULT_BATCH_SIZE,
    FREE_STATES,
    LAYERS,
    MOST_SENTENCES,
    STATES,
    check_choice,
    check_count,
    shown,
)
from elmo_fast.embed.progress import Progress
from elmo_fast.embed.run import Runner, write_corpus
from elmo_fast.embed.stream import SlotStream
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.lock import locked
from elmo_fast.model.bilm import BiLm
from elmo_fast.model.hooked import is_hooked
from elmo_fast.model.layers.batch_layout import remove_boundaries
from elmo_fast.model.public import NAMED_MODELS
from elmo_fast.model.token_table.spare import SpareVectors
from elmo_fast.ops.device import to_host
from elmo_fast.ops.linear import computes_in
from elmo_fast.outside_graphs import outside_graphs
from elmo_fast.text.batching import check_batch, check_iterable, check_sentence, groups_of
from elmo_fast.text.readers import read_lines, scan
from elmo_fast.vectors import layouts
from elmo_fast.vectors.spec import OutputSpec, Target

DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE = (file.url for file in NAMED_MODELS["original"][0])
_WIDE = 512  # values per vector from which a layer's weights exceed a core's private cache
_MANY = 512  # sentences at a time on a GPU: a step of so few as 64 leaves most of it idle, or waits for its weights


class ElmoEmbedder:
    """Vectors of tokenized sentences: float32 [layers, tokens, 2 P] a sentence, token layer first.

    With `state="carry"`, as in AllenNLP, a sentence embedded twice gives different vectors. `options_file` and
    `weight_file` are paths or URLs; `cuda_device` -1 is the CPU. Further `options` are fields of `ModelOptions`.
    """

    _bilm: type[BiLm] = BiLm

    def __init__(self, options_file: str | os.PathLike = DEFAULT_OPTIONS_FILE,
                 weight_file: str | os.PathLike = DEFAULT_WEIGHT_FILE, cuda_device: int = -1, **options):
        device = torch_device(cuda_device)
        bilm = self._bilm.from_files(options_file, weight_file, **options)
        self._take(bilm if device.type == "cpu" else bilm.to(device), cuda_device)

    @classmethod
    def from_bilm(cls, bilm: BiLm) -> "ElmoEmbedder":
        """An embedder of a biLM in memory, on the biLM's device."""
        embedder = cls.__new__(cls)
        device = bilm.lstm.B_0_0.device
        embedder._take(bilm, -1 if device.index is None else device.index)
        return embedder

    def _take(self, bilm: BiLm, cuda_device: int) -> None:
        self.elmo_bilm = bilm.eval()
        self.cuda_device = cuda_device
        self._spare = SpareVectors()

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of a batch, padded: [B, layers, T, 2 P], zero past a sentence's end, and mask int64 [B, T]."""
        return self._padded(batch, self.elmo_bilm.state)

    def _padded(self, batch: Sequence[Sequence[str]], state: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = self.elmo_bilm.token_source.batch_ids(batch)
        with torch.no_grad():
            output = self.elmo_bilm(ids, state=state)
        inner = [remove_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.stack([layer for layer, _ in inner], dim=1), inner[0][1].long()

    def embed_sentence(self, sentence: Sequence[str]) -> np.ndarray:
        """Vectors of one tokenized sentence: float32 [layers, tokens, 2 P]."""
        return self.embed_batch([check_sentence(sentence)])[0]

    @outside_graphs
    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Vectors of a batch, float32 [layers, tokens, 2 P] per sentence; an empty sentence has 0 tokens.

        A single empty sentence does not change the carried states, as in AllenNLP; in a larger batch an empty sentence
        runs as `<S> </S>`.
        """
        batch = check_batch(batch)
        return self._batch(batch, self.elmo_bilm.state, self._slot_stream(len(batch), self.elmo_bilm.state))

    def _batch(self, batch: list[tuple[str, ...]], state: str, stream: SlotStream) -> list[np.ndarray]:
        if not batch:
            return []
        if len(batch) == 1 and not len(batch[0]):
            return [np.zeros((self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim()), np.float32)]
        if self._runs_padded():
            embeddings, mask = self._padded(batch, state)
            padded = to_host(embeddings.float()).numpy()
            return [vectors[:, :length].copy() for vectors, length in zip(padded, mask.sum(1).tolist())]
        with self.elmo_bilm.lstm.exclusive(state == "carry"):
            return list(stream.run(batch))

    def embed_sentences(self, sentences: Iterable[Sequence[str]],
                        batch_size: int | None = None) -> Iterator[np.ndarray]:
        """Vectors of an iterable of sentences, in its order, float32 [layers, tokens, 2 P] a sentence.

        `batch_size` sentences run at a time, batch after batch if states are carried, as in AllenNLP; otherwise each
        slot takes its next sentence as soon as it is free (see `SlotStream`), and a bounded number of sentences is read
        ahead. The results are those of batches. By default 64 sentences run at a time; if no states are carried 128
        where the CPU computes a wide model below `highest`, and so reads the weights half as often, and 512 on a GPU.
        """
        if isinstance(sentences, (str, bytes)):
            check_sentence(sentences, "sentences")
        check_iterable(sentences, "sentences")
        checked = (check_sentence(sentence, f"sentences[{number}]") for number, sentence in enumerate(sentences))
        return self.stream(checked, batch_size)

    def stream(self, sentences: Iterable[Sequence[str]], batch_size: int | None,
               state: str | None = None) -> Iterator[np.ndarray]:
        """As `embed_sentences`, for sentences that were checked before; `state` is by default the model's."""
        state = self.elmo_bilm.state if state is None else check_choice("state", state, STATES)
        # Sentences are read ahead: a list that the caller fills anew is copied when it comes.
        sentences, batch_size = map(tuple, sentences), self._rows(batch_size, state)
        if state in FREE_STATES and not self._runs_padded():
            return self._slot_stream(batch_size, state).run(sentences)
        return self._in_batches(sentences, batch_size, state)

    def runner(self, batch_size: int | None, state: str | None = None, form: OutputSpec | None = None) -> Runner:
        """The `Runner` that computes vectors for `write_corpus`. With carried states a section has whole batches.

        Where `form` stores single values in float16, a GPU rounds them before they are copied to the host.
        """
        bilm = self.elmo_bilm
        state = bilm.state if state is None else check_choice("state", state, STATES)
        batch_size = self._rows(batch_size, state)
        run = (functools.partial(self._in_batches, batch_size=batch_size, state=state) if self._runs_padded() else
               self._slot_stream(batch_size, state, half=form is not None and form.rounds_alone).run)
        return Runner(bilm, lambda texts: groups_of(texts, batch_size),
                      lambda groups: run(text.tokens for group in groups for text in group),
                      {"batch_size": batch_size} if state == "carry" else {}, state)

    def _slot_stream(self, slots: int, state: str, half: bool = False) -> SlotStream:
        """A stream that takes the token vectors of earlier calls."""
        return SlotStream(self.elmo_bilm, slots, state=state, half=half, spare=self._spare)

    def _runs_padded(self) -> bool:
        """Whether batches run padded, by a call of the module: for the reference backend, or if it has hooks."""
        return self.elmo_bilm.backend == "reference" or is_hooked(self.elmo_bilm)

    def _rows(self, batch_size: int | None, state: str) -> int:
        """Sentences that run at a time: the caller's number, or the default of `embed_sentences`."""
        if batch_size is not None:
            return check_count("batch_size", batch_size, most=MOST_SENTENCES)
        bilm, weight = self.elmo_bilm, self.elmo_bilm.lstm.B_0_0
        if state not in FREE_STATES:
            return DEFAULT_BATCH_SIZE
        if weight.device.type != "cpu":
            return _MANY
        is_fast = computes_in(weight, bilm.backend, bilm.precision) != "highest"
        return 2 * DEFAULT_BATCH_SIZE if is_fast and bilm.get_output_dim() >= _WIDE else DEFAULT_BATCH_SIZE

    def _in_batches(self, sentences: Iterable[Sequence[str]], batch_size: int, state: str) -> Iterator[np.ndarray]:
        stream = self._slot_stream(batch_size, state)
        for batch in groups_of(sentences, batch_size):
            yield from self._batch(batch, state, stream)

    def embed_file(self, input_file: IO[str], output_file_path: str | os.PathLike, output_format: str = "all",
                   batch_size: int = DEFAULT_BATCH_SIZE, forget_sentences: bool = False,
                   use_sentence_keys: bool = False, *, allow_blank: bool = False, progress: bool | str = True,
                   resume: bool = False) -> None:
        """Embed a text file, one tokenized sentence a line, into HDF5 datasets keyed by line index; closes the input.

        `output_format` is `all` ([layers, tokens, 2 P]), `top` or `average` ([tokens, 2 P]). `sentence_to_index`
        holds a JSON string that maps each sentence to its key, unless `forget_sentences`. With `use_sentence_keys`
        the sentences themselves are the keys. `allow_blank` gives blank lines datasets without tokens. From
        AllenNLP's `embed_file`. The output is written atomically; `resume` continues an interrupted run (see
        `write_corpus`). `progress` shows a bar if stderr is a terminal, or with `"lines"` a line every ten seconds in
        any case.
        """
        form = OutputSpec(check_choice("output_format", output_format, LAYERS, ConfigurationError))
        if not hasattr(input_file, "readline"):
            raise ValueError(f"input_file: expected a file opened as text, got {shown(input_file)}")
        options = {"use_sentence_keys": use_sentence_keys, "forget_sentences": forget_sentences}
        with input_file:
            layouts.check_output("allennlp", output_file_path, form, "output file")
            with locked(output_file_path) as part:
                count = scan(input_file, allow_blank)
                write_corpus(read_lines(input_file, allow_blank), self.runner(batch_size),
                             Target(output_file_path, "allennlp", form, options), resume=resume,
                             progress=Progress(progress, count), lock=part)


def torch_device(cuda_device: int, name: str = "cuda_device") -> torch.device:
    """The device with AllenNLP's number, -1 for the CPU; `ConfigurationError` for a GPU that torch does not see."""
    if isinstance(cuda_device, bool) or not isinstance(cuda_device, int) or cuda_device < -1:
        raise ConfigurationError(f"{name}: expected -1 for the CPU or the number of a GPU, got {shown(cuda_device)}")
    count = torch.cuda.device_count()
    if cuda_device >= count:
        expected = f"-1 or a number below {count} (the GPUs that torch sees)" if count else "-1 (torch sees no GPU)"
        raise ConfigurationError(f"{name}: expected {expected}, got {cuda_device}")
    return torch.device("cpu") if cuda_device < 0 else torch.device("cuda", cuda_device)
