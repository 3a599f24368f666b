"""The public models that `load` takes by name: language, size, licence, and where they are.

Sizes and licences are those that the models' own pages or archives state. None of them states a hash.
"""

from typing import NamedTuple

from elmo_fast.model.sources import DEFAULT_MODEL, MANYLANGS, NAMED_MODELS, NLPL, repository_url

_UNSTATED = "not stated"


class PublicModel(NamedTuple):
    """A model as `load` names it. `size` counts parameters, or is that of the download."""

    name: str
    language: str
    size: str
    licence: str
    source: str


def public_models() -> list[PublicModel]:
    """Every model that can be named; a single entry for the NLPL repository, whose catalogue has the numbers."""
    sizes = {"small": "13.6 M", "medium": "28.0 M", "original": "93.6 M", "original_5.5b": "93.6 M"}
    return [
        PublicModel(DEFAULT_MODEL, "English", "in the package", "Apache-2.0", "elmo_fast/pretrained"),
        *(PublicModel(name, "English", size, _UNSTATED, f"{NAMED_MODELS[name]}{{options.json,weights.hdf5}}")
          for name, size in sizes.items()),
        PublicModel("seqvec", "proteins", "93.6 M, 360 MB", "MIT (its repository)",
                    f"{NAMED_MODELS['seqvec']}{{options.json,weights.hdf5}}"),
        PublicModel("nlpl:NUMBER", "many", _UNSTATED, "see its meta.json", f"{NLPL}/20/NUMBER.zip, catalogue: "
                    f"{NLPL}/20.json"),
        *(PublicModel(f"manylangs:{language}", language, _UNSTATED, "MIT (its repository)",
                      repository_url(f"manylangs:{language}")) for language in MANYLANGS),
    ]


def report() -> list[str]:
    """A line for each model, in columns."""
    rows = [PublicModel("name", "language", "size", "licence", "where"), *public_models()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(f"{value:{width}}" for value, width in zip(row, widths)).rstrip() for row in rows]
