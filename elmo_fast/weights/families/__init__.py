"""Families of models: the file names that identify a family, and the module that reads its files. Imports no torch.

The module of a family has
- `read(files, allow_nonfinite)`: returns a model's options, and its float32 weights by dataset name;
- `describe(options)`: says in words what the model reads of a token.
A new family is a module in this folder and a row in `FAMILIES`.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import ModuleType

SOFTMAX_FILE = "softmax.hdf5"  # beside the weights of a model that has a softmax
SAFETENSORS = ".safetensors"
SUFFIXES = (".hdf5", ".h5", SAFETENSORS)  # of weights in bilm-tf's layout


@dataclass(frozen=True)
class Family:
    """A family of models: `name` is for messages, `module` has the functions, `bilm` names the class of its `BiLm`.

    `options`, `weights`, `vocabularies` and `others` are patterns of the names of its files in a directory or an
    archive; `preferred` are the usual names if a directory has several files of a kind. `lexicons` are prefixes of
    datasets whose rows are numbered by a lexicon, which a file `*.hdf5` lacks. `readers` are the calls that read the
    family, for the messages of other calls.
    """

    name: str
    module: str
    bilm: str
    options: tuple[str, ...]
    weights: tuple[str, ...]
    vocabularies: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    lexicons: tuple[str, ...] = ()
    readers: str = "elmo_fast.load and `elmo-fast embed`"

    def is_options(self, name: str) -> bool:
        """Whether a file of this name may be a model's options."""
        return _fits(name, self.options)

    def is_weights(self, name: str) -> bool:
        """Whether a file of this name may be a model's weights."""
        return _fits(name, self.weights) and name not in self.others

    def is_file(self, name: str) -> bool:
        """Whether a model needs a file of this name."""
        return _fits(name, (*self.options, *self.weights, *self.vocabularies, *self.others))

    def no_hdf5(self) -> str:
        """The message for a model of this family that should be written as `options.json` and `*.hdf5`."""
        return (f"expected a model that options.json and *.hdf5 can hold, got a model of {self.name}, whose lexicons "
                "they cannot hold; copy its directory instead")

    @property
    def implementation(self) -> ModuleType:
        """The family's module, imported at the first use."""
        return importlib.import_module(f"{__name__}.{self.module}")


MANYLANGS = Family(
    "ELMoForManyLangs", "manylangs", "elmo_fast.nn.manylangs:ManyLangsBiLm",
    options=("config.json",), weights=("encoder.pkl",),
    others=("token_embedder.pkl", "char.dic", "word.dic", "*.json"), lexicons=("char.dic/", "word.dic/"),
    readers="elmo_fast.load, `elmo-fast embed` and elmo_fast.compat.elmoformanylangs")
BILM_TF = Family(
    "bilm-tf", "bilm_tf", "elmo_fast.nn.bilm:BiLm",
    options=("*options.json", "options_file"),  # names without a suffix are bio_embeddings'
    weights=(*(f"*{suffix}" for suffix in SUFFIXES), "weights_file"), vocabularies=("vocab.txt", "vocab.txt.gz"),
    others=(SOFTMAX_FILE,),
    preferred=("options.json", "options_file", "weights_file",
               *(f"{name}{suffix}" for name in ("model", "weights", "lm_weights") for suffix in SUFFIXES)))
ALLENNLP = Family(  # `find_model` converts its models to bilm-tf's
    "AllenNLP", "allennlp", "elmo_fast.nn.bilm:BiLm", options=("*options_file", "*options.json"),
    weights=("weights.th",))
FAMILIES = (MANYLANGS, BILM_TF, ALLENNLP)  # the first family whose weights are present applies


def family_of(names: Iterable[str]) -> Family:
    """The family of a model with files of these names, by default bilm-tf's."""
    names = list(names)
    return next((family for family in FAMILIES if any(map(family.is_weights, names))), BILM_TF)


def _fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits a pattern; the `._` files that macOS puts beside others do not."""
    return not name.startswith(".") and any(fnmatchcase(name, pattern) for pattern in patterns)
