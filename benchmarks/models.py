"""The models of workloads.py: in memory for us, as files for a peer."""

import json
from pathlib import Path

from benchmarks import workloads


def build(model: str, *, backend: str = "reference", seed: int = 0, precision: str = "highest", state: str = "carry",
          device: str = "cpu", **lstm):
    """A `BiLm` of a name of `workloads.MODELS` on a device; keyword arguments replace LSTM entries of the options.

    All but the bundled model have random weights.
    """
    from elmo_fast import BiLm, Options
    from elmo_fast.weights.datasets import random_weights

    if model == "bundled":
        return BiLm.from_model(model, state=state, precision=precision, backend=backend).eval().to(device)
    options = Options.from_dict(workloads.options_of(model, **lstm))
    weights = random_weights(options, seed=seed)
    return BiLm(options, weights, state=state, precision=precision, backend=backend).eval().to(device)


class Embedder:
    """Ours with the two methods that `peers.AllenNlp` has, and the stream.

    Embedders may share a model: a call sets its `precision`, and packed weights are cached by precision.
    """

    def __init__(self, bilm, precision: str | None = None):
        self.bilm, self.precision = bilm, precision or bilm.precision
        self.reset_states()

    def reset_states(self) -> None:
        """Forget states, and the vectors of tokens of earlier calls: a turn's text is new."""
        from elmo_fast import ElmoEmbedder

        self.bilm.reset_states()
        self.embedder = ElmoEmbedder.from_bilm(self.bilm)

    def embed_batch(self, batch: list[list[str]]) -> list:
        self.bilm.precision = self.precision
        return self.embedder.embed_batch(batch)  # a list of [layers, tokens, 2 P]

    def embed_sentences(self, sentences: list[list[str]], batch_size: int) -> list:
        self.bilm.precision = self.precision
        return list(self.embedder.embed_sentences(sentences, batch_size))


def absent_precisions(device: str = "cpu") -> dict[str, str]:
    """The precisions that the CPU engine does not compute in here, and why; what stands for them is `highest`."""
    if device != "cpu":
        return {}
    from elmo_fast.engine.backend import native_module, supports_precision
    from elmo_fast.engine.precision import PRECISIONS

    why = native_module()[1] or "runs as highest: 16-bit tile products need AMX, which this machine does not offer"
    return {name: why for name in PRECISIONS if name != "highest" and not supports_precision(name)}


def write_files(folder: Path, model: str, seed: int = 0) -> tuple[Path, Path]:
    """options.json and weights.hdf5 of the model that `build` gives for this name and seed."""
    from elmo_fast import Options
    from elmo_fast.weights.datasets import random_weights, write_weights
    from elmo_fast.weights.sources import find_model

    if model == "bundled":
        found = find_model(model)
        return found.options_file, found.weight_file
    content = workloads.options_of(model)
    options_file, weight_file = folder / "options.json", folder / "weights.hdf5"
    options_file.write_text(json.dumps(content), encoding="utf-8")
    write_weights(weight_file, random_weights(Options.from_dict(content), seed=seed))
    return options_file, weight_file
