"""`ElmoEmbedder`: tokenized sentences to NumPy arrays and HDF5 files, as AllenNLP's class of that name."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, LAYERS, check_choice, shown
from elmo_fast.embed.bilm_embedder import BiLmEmbedder
from elmo_fast.embed.progress import Progress
from elmo_fast.embed.run import write_corpus
from elmo_fast.environment import extra
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.lock import locked
from elmo_fast.nn.at_rest import parameter_of
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.outside_graphs import outside_graphs
from elmo_fast.text.batching import check_iterable, check_sentence
from elmo_fast.text.readers import read_lines, scan
from elmo_fast.vectors import layouts
from elmo_fast.vectors.spec import OutputSpec, Target
from elmo_fast.weights.public import NAMED_MODELS

with extra("torch"):
    import torch

DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE = (file.url for file in NAMED_MODELS["original"][0])


class ElmoEmbedder(BiLmEmbedder):
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
        device = parameter_of(bilm).device
        embedder._take(bilm, -1 if device.index is None else device.index)
        return embedder

    def _take(self, bilm: BiLm, cuda_device: int) -> None:
        super().__init__(bilm)
        self.cuda_device = cuda_device

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of a batch, padded: [B, layers, T, 2 P], zero past a sentence's end, and mask int64 [B, T]."""
        return self._padded(batch, self.elmo_bilm.state)

    @outside_graphs
    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[np.ndarray]:
        return super().embed_batch(batch)

    def embed_sentences(self, sentences: Iterable[Sequence[str]],
                        batch_size: int | None = None) -> Iterator[np.ndarray]:
        """Vectors of an iterable of sentences, in its order, float32 [layers, tokens, 2 P] a sentence; see `stream`."""
        if isinstance(sentences, (str, bytes)):
            check_sentence(sentences, "sentences")
        check_iterable(sentences, "sentences")
        checked = (check_sentence(sentence, f"sentences[{number}]") for number, sentence in enumerate(sentences))
        return self.stream(checked, batch_size)

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
