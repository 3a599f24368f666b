"""Runs AllenNLP 0.9's own ELMo code, from a checkout the user names, on today's PyTorch.

Nothing of AllenNLP is copied here. Its modules are imported from the checkout's files; what they import
besides (spaCy, boto3, overrides, and package files that pull in the complete toolkit) is replaced by
stand-ins while they load. The stand-ins do no work in a forward pass, so that the numbers and the time
are those of the original code.

    python -m benchmarks.peers.allennlp --allennlp CHECKOUT    checks it against the TensorFlow-written fixtures
"""

import argparse
import importlib
import json
import os
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import common

FIXTURES = {"allennlp": "sentences.json", "bilm-tf": "lm_embeddings_sentences.json"}  # folders, and their sentences
# Packages whose own __init__ imports the complete toolkit: entered through their folder instead. The
# names are those that the ELMo code imports from the package itself, and the module that defines them.
PACKAGES = {
    "allennlp": {},
    "allennlp.commands": {},
    "allennlp.common": {
        "JsonDict": "allennlp.common.util",
        "Params": "allennlp.common.params",
        "Registrable": "allennlp.common.registrable",
    },
    "allennlp.data": {
        "Instance": "allennlp.data.instance",
        "Token": "allennlp.data.tokenizers.token",
        "Vocabulary": "allennlp.data.vocabulary",
    },
    "allennlp.data.fields": {"TextField": "allennlp.data.fields.text_field"},
    "allennlp.data.token_indexers": {},
    "allennlp.data.tokenizers": {},
    "allennlp.modules": {},
    "allennlp.nn": {},
}


class PeerError(RuntimeError):
    """The checkout is missing, is another version, or no longer loads."""


def _package(name: str, folder: Path, exports: dict[str, str]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]

    def lookup(attribute: str):
        if attribute not in exports:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return getattr(importlib.import_module(exports[attribute]), attribute)

    module.__getattr__ = lookup
    return module


def _module(name: str, **attributes) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(attributes)
    return module


def _foreign() -> dict[str, types.ModuleType]:
    """Third-party modules that only need to exist for the ELMo code to load."""
    stand_ins = [
        _module("overrides", overrides=lambda method: method),
        _module("spacy"),
        _module("spacy.cli"),
        _module("spacy.cli.download", download=None),
        _module("spacy.language", Language=object),
        _module("spacy.tokens", Token=type("Token", (), {})),
    ]
    return {module.__name__: module for module in stand_ins}


def _own() -> dict[str, types.ModuleType]:
    """Parts of AllenNLP itself that fetch files or initialise weights which are then overwritten."""
    stand_ins = [
        _module("allennlp.common.file_utils", cached_path=os.fspath),
        # block_orthogonal factorises 4096-row matrices for minutes before the weights are read in
        _module("allennlp.nn.initializers", block_orthogonal=lambda *args, **kwargs: None),
    ]
    return {module.__name__: module for module in stand_ins}


@contextmanager
def _stand_ins(root: Path):
    """Installs the stand-ins; on the way out the foreign ones make room for the real packages again."""
    foreign = _foreign()
    hidden = {name: sys.modules.pop(name) for name in foreign if name in sys.modules}
    sys.modules.update(foreign)
    for name, exports in PACKAGES.items():
        sys.modules[name] = _package(name, root.joinpath(*name.split(".")), exports)
    sys.modules.update(_own())
    try:
        yield
    finally:
        for name in foreign:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def load_allennlp(checkout: str | Path) -> types.ModuleType:
    """The checkout's `allennlp.commands.elmo`: `ElmoEmbedder`, `_ElmoBiLm` and `batch_to_ids`."""
    root = Path(checkout)
    if not (root / "allennlp" / "modules" / "elmo.py").is_file():
        raise PeerError(f"--allennlp: expected a checkout of AllenNLP 0.9 with allennlp/modules/elmo.py, got {root}")
    loaded = sys.modules.get("allennlp")
    if loaded is not None and list(getattr(loaded, "__path__", [])) != [str(root / "allennlp")]:
        raise PeerError("--allennlp: another allennlp is imported already; run this in a process of its own")
    if loaded is None:
        try:
            with _stand_ins(root), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module("allennlp.data.instance")  # first: it and vocabulary import one another
                importlib.import_module("allennlp.commands.elmo")
        except Exception as error:
            _forget()
            raise PeerError(f"--allennlp: {root} does not load: {type(error).__name__}: {error}") from error
    return sys.modules["allennlp.commands.elmo"]


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "allennlp"]:
        del sys.modules[name]


class AllenNlp:
    """AllenNLP's ElmoEmbedder on given files; `embed_batch` as its command runs it, without gradients."""

    def __init__(self, checkout: str | Path, options_file: str | Path, weight_file: str | Path, cuda_device: int = -1):
        self.code = load_allennlp(checkout)
        self.embedder = self.code.ElmoEmbedder(str(options_file), str(weight_file), cuda_device)

    def reset_states(self) -> None:
        self.embedder.elmo_bilm._elmo_lstm._states = None

    def embed_batch(self, batch: list[list[str]]) -> list[np.ndarray]:
        import torch

        with torch.no_grad():
            return self.embedder.embed_batch(batch)  # a list of [layers, tokens, 2 * projection]


def beside_fixtures(embedder, folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """An embedder's layers of the 30 fixture sentences of a folder, each beside those that bilm-tf computed."""
    streams = json.loads((folder / FIXTURES[folder.name]).read_text(encoding="utf-8"))
    embedder.reset_states()
    with np.load(folder.parent / "all_layers.npz") as expected:
        for batch, sentences in enumerate(zip(*streams)):
            found = embedder.embed_batch([sentence.split() for sentence in sentences])
            yield from ((layers, expected[f"{folder.name}/{batch}/{stream}"]) for stream, layers in enumerate(found))


def fixture_error(checkout: str | Path, shared: Path) -> float:
    """Largest absolute difference from the layers that bilm-tf computed, over all 30 fixture sentences."""
    folder = shared / "fixtures" / "allennlp"
    if not folder.is_dir():
        raise PeerError(f"--shared: expected a folder with fixtures/allennlp, got {shared}")
    peer = AllenNlp(checkout, folder / "options.json", folder / "lm_weights.hdf5")
    return max(float(np.abs(layers - expected).max()) for layers, expected in beside_fixtures(peer, folder))


def main() -> int:
    parser = argparse.ArgumentParser(description="Check that AllenNLP's own ELMo code runs here and agrees with "
                                                 "the TensorFlow-written fixtures to 1e-5.")
    parser.add_argument("--allennlp", required=True, metavar="PATH", help="a source checkout of AllenNLP 0.9")
    parser.add_argument("--shared", type=Path, default=common.shared_folder(), metavar="DIR",
                        help="folder with fixtures/ (default: $ELMO_FAST_SHARED, else ../shared)")
    arguments = parser.parse_args()
    try:
        error = fixture_error(arguments.allennlp, arguments.shared)
    except PeerError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(f"AllenNLP against the fixtures: largest absolute error {error:.2e} (limit 1e-5)")
    return 0 if error < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
