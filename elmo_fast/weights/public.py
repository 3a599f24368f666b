"""The models that have names: their public addresses, and what their pages state.

Every address stands in a public source, which a comment names. None has been tried by this project's developers, and
none of the sources publishes a checksum of these files.
"""

import time

from elmo_fast.arguments import check_choice
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.downloads import RemoteFile, cache_path

Copy = tuple[RemoteFile, ...]  # the options and the weights, or an archive
_ORIGINAL = 336, 374_434_792  # bytes, as public notebooks log its download by AllenNLP and by flair
_SEQVEC = None, 374_434_776  # bytes: sacdallago/bio_embeddings, issues 130 and 224


def _two_files(prefix: str, sizes: tuple[int | None, int | None] = (None, None)) -> Copy:
    return tuple(RemoteFile(f"{prefix}{kind}", size) for kind, size in zip(("options.json", "weights.hdf5"), sizes))


def _allennlp(architecture: str, sizes: tuple[int | None, int | None] = (None, None)) -> tuple[Copy, ...]:
    """Both spellings of the bucket: AllenNLP 1 and later, and AllenNLP 0.9 (allennlp/commands/elmo.py)."""
    return tuple(_two_files(f"{bucket}/models/elmo/{architecture}/elmo_{architecture}_", sizes) for bucket in (
        "https://allennlp.s3.amazonaws.com", "https://s3-us-west-2.amazonaws.com/allennlp"))


NAMED_MODELS: dict[str, tuple[Copy, ...]] = {
    "small": _allennlp("2x1024_128_2048cnn_1xhighway"),
    "medium": _allennlp("2x2048_256_2048cnn_1xhighway"),
    "original": (
        *_allennlp("2x4096_512_2048cnn_2xhighway", _ORIGINAL),
        # huggingface.co/lysandre/bidaf-elmo-model-2020.03.19, config.json, in place of AllenNLP's address
        _two_files("https://huggingface.co/lysandre/elmo-2x4096_512_2048cnn_2xhighway/resolve/main/", _ORIGINAL)),
    "original_5.5b": _allennlp("2x4096_512_2048cnn_2xhighway_5.5B"),
    "seqvec": (
        # mheinzinger/SeqVec, seqvec/seqvec.py; 404 in 2024 (Rostlab/SeqVec, issue 27)
        _two_files("https://rostlab.org/~deepppi/embedding_repo/embedding_models/seqvec/", _SEQVEC),
        # sacdallago/bio_embeddings, bio_embeddings/utilities/defaults.yml: today's host, and the one before it
        _two_files("http://data.bioembeddings.com/public/embeddings/embedding_models/seqvec/", _SEQVEC),
        _two_files("http://maintenance.dallago.us/public/embeddings/embedding_models/seqvec/", _SEQVEC),
        # labstructbioinf/DeepCoil, deepcoil/deepcoil.py: a backup of its authors
        (RemoteFile("https://lbs.cent.uw.edu.pl/static/files/seqvec.zip"),),
        # Rostlab/SeqVec, README.md; 404 in 2024 (labstructbioinf/rossmann-toolbox, issue 14, which names the next copy)
        (RemoteFile("https://rostlab.org/~deepppi/seqvec.zip"),),
        (RemoteFile("https://web.archive.org/web/20220324054637/https://rostlab.org/~deepppi/seqvec.zip"),)),
}
NLPL = "vectors.nlpl.eu/repository"
# Languages of ELMoForManyLangs, whose models have the numbers from 136 on (HIT-SCIR/ELMoForManyLangs, README.md).
LANGUAGES = dict(pair.split(":") for pair in (
    "ar:Arabic bg:Bulgarian ca:Catalan cs:Czech cu:Old_Church_Slavonic da:Danish de:German el:Greek en:English "
    "es:Spanish et:Estonian eu:Basque fa:Persian fi:Finnish fr:French ga:Irish gl:Galician grc:Ancient_Greek he:Hebrew "
    "hi:Hindi hr:Croatian hu:Hungarian id:Indonesian it:Italian ja:Japanese ko:Korean la:Latin lv:Latvian nl:Dutch "
    "nb:Norwegian_Bokmål nn:Norwegian_Nynorsk pl:Polish pt:Portuguese ro:Romanian ru:Russian sk:Slovak sl:Slovene "
    "sv:Swedish tr:Turkish ug:Uyghur uk:Ukrainian ur:Urdu vi:Vietnamese zh:Chinese").split())
_FIRST_LANGUAGE = 136
DEFAULT_MODEL = "bundled"
_ANY_NLPL = "nlpl:NUMBER"
MODEL_NAMES = (DEFAULT_MODEL, *NAMED_MODELS, _ANY_NLPL, "manylangs:LANGUAGE")
_UNSTATED, _MIT = "not stated", "MIT (its repository)"
_NUMBERED = ("nlpl", "manylangs")  # a name has a NUMBER or LANGUAGE
_TITLES = "name", "language", "values a token", "size", "licence", "downloaded"
_STATED = {  # from the language to the licence, as pages or archives state it; values in a layer, parameters and bytes
    DEFAULT_MODEL: ("English", "384", "6.0 M, 7 MB", "Apache-2.0"),
    "small": ("English", "256", "13.6 M", _UNSTATED),
    "medium": ("English", "512", "28.0 M", _UNSTATED),
    "original": ("English", "1,024", f"93.6 M, {_ORIGINAL[1] // 10**6} MB", _UNSTATED),
    "original_5.5b": ("English", "1,024", "93.6 M", _UNSTATED),
    "seqvec": ("proteins", "1,024", f"93.6 M, {_SEQVEC[1] // 10**6} MB", _MIT),
    "nlpl": ("many", _UNSTATED, _UNSTATED, "in its meta.json"),
    "manylangs": ("", "1,024", _UNSTATED, _MIT),
}


def public_copies(name: str) -> tuple[Copy, ...]:
    """All copies of the model of a name, in the order in which they are tried; none if the name is not a model's.

    `ConfigurationError` for a wrong NUMBER or LANGUAGE.
    """
    kind, _, which = name.partition(":")
    if kind == "manylangs":
        check_choice("manylangs", which, tuple(LANGUAGES), ConfigurationError)
        number = _FIRST_LANGUAGE + list(LANGUAGES).index(which)
        # A number keeps its model in later releases of the repository: wiki.nlpl.eu/Vectors/home; 20/162 is Latin in
        # ltgoslo/simple_elmo, issue 2.
        return tuple((RemoteFile(url),) for url in (f"http://{NLPL}/11/{number}.zip", *_nlpl(str(number))))
    if kind == "nlpl":
        if not (which.isascii() and which.isdigit()):
            raise ConfigurationError(f"nlpl: expected the number of a model in http://{NLPL}/20.json, got {which!r}")
        return tuple((RemoteFile(url),) for url in _nlpl(which))
    return NAMED_MODELS.get(name, ())


def _nlpl(number: str) -> list[str]:
    """Release 20, without and with TLS, as public code asks for it."""
    return [f"{scheme}://{NLPL}/20/{number}.zip" for scheme in ("http", "https")]


def _about(name: str) -> tuple[str, ...]:
    """What `_TITLES` say of a public model; `ConfigurationError` for another name.

    `downloaded` is the last day on which this machine downloaded the model, "not yet", or "included" in the package.
    """
    kind, _, which = name.partition(":")
    if kind not in _STATED or bool(which) != (kind in _NUMBERED):
        raise ConfigurationError(f"name: expected one of {', '.join(MODEL_NAMES)}, got {name!r}")
    stored = [] if name in (DEFAULT_MODEL, _ANY_NLPL) else [cache_path(copy[-1].url) for copy in public_copies(name)]
    days = [time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime)) for path in stored if path.is_file()]
    language, *rest = _STATED[kind]
    return (name, LANGUAGES.get(which, language).replace("_", " "), *rest,
            max(days, default="included" if name == DEFAULT_MODEL else "not yet"))


def public_model_lines(name: str | None = None) -> list[str]:
    """A line for each public model, in columns; with a name all about this model, its addresses included."""
    if name is not None:
        about = [*zip(_TITLES, _about(name))]
        addresses = [("address", file.url) for copy in public_copies(name) for file in copy]
        return [f"{label + ':':16}{value}" for label, value in [*about, *addresses]]
    names = [*MODEL_NAMES[:-1], *(f"manylangs:{code}" for code in LANGUAGES)]
    licence = _TITLES.index("licence")
    rows = [(*row[:licence], *row[licence + 1 :]) for row in (_TITLES, *map(_about, names))]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(f"{value:{width}}" for value, width in zip(row, widths)).rstrip() for row in rows]
