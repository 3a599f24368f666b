"""The tasks of `elmo-fast evaluate`, by name: their data, how they are done, and what others published."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from elmo_fast.embed.api import LoadedElmo, load
from elmo_fast.errors import ConfigurationError
from elmo_fast.evaluate import data
from elmo_fast.evaluate.data import Split, Texts, folder_of
from elmo_fast.evaluate.report import Report

_NOT_COMPARED = "the ELMo of the paper, see Perone et al. 2018, arXiv:1806.06259 (SentEval); no figure is quoted here"


class Task(NamedTuple):
    """`read` reads the data from a folder, `run` does the task with what was read and the published figure.

    At most `limit` texts of the training part are used, unless the user gives another number.
    """

    read: Callable[[Path], tuple]
    run: Callable[..., Report]
    published: str
    limit: int | None = None


def _tagging(name: str) -> Callable[..., Report]:
    def run(elmo: LoadedElmo, *arguments) -> Report:
        from elmo_fast.evaluate import tagging

        train, test, dev, published = arguments
        return getattr(tagging, name)(elmo, Split(train, test, dev), published)
    return run


def _classes(title: str, proteins: bool = False) -> Callable[..., Report]:
    def run(elmo: LoadedElmo, *arguments) -> Report:
        from elmo_fast.evaluate.classification import classify

        train, test, dev, published = arguments
        return classify(title, elmo, Split(train, test, dev), published, proteins)
    return run


def _contexts(name: str) -> Callable[..., Report]:
    def run(elmo: LoadedElmo, *arguments) -> Report:
        from elmo_fast.evaluate import contexts

        return getattr(contexts, name)(elmo, *arguments)
    return run


TASKS: dict[str, Task] = {
    "pos": Task(data.read_pos, _tagging("pos"), "linear probes on EWT by ELMo (original): Liu et al. 2019, "
                "arXiv:1903.08855, Table 1; no figure is quoted here"),
    "wic": Task(data.read_wic, _contexts("wic"), "ELMo 57.7 (Pilehvar and Camacho-Collados 2019, arXiv:1808.09121; "
                "a threshold on the cosine)"),
    "mr": Task(data.read_mr, _classes("sentiment of film reviews"), _NOT_COMPARED),
    "sst5": Task(data.read_sst5, _classes("sentiment in five classes"), "ELMo 54.7 ± 0.5 in a biattentive network that "
                 "was trained for the task (Peters et al. 2018, arXiv:1802.05365), so not by a linear probe"),
    "trec": Task(data.read_trec, _classes("class of questions"), _NOT_COMPARED),
    "subj": Task(data.read_subj, _classes("subjective or objective"), _NOT_COMPARED),
    "secondary_structure": Task(data.read_secondary_structure, _tagging("secondary_structure"), "SeqVec 79 ± 1 by a "
                                "convolutional network, on other test sets (Heinzinger et al. 2019, BMC Bioinformatics "
                                "20:723)", 1000),
    "localization": Task(data.read_localization, _classes("place in the cell", proteins=True), "SeqVec 68 ± 1 by a "
                         "network with a hidden layer, on DeepLoc's test part (Heinzinger et al. 2019, BMC "
                         "Bioinformatics 20:723)"),
    "lexical_substitution": Task(data.read_substitutes, _contexts("lexical_substitution"), "nothing was found of an "
                                 "ELMo whose candidates are ranked by cosine"),
}


def evaluate(model: str | os.PathLike, task: str, data: str | os.PathLike, limit: int | None = None,
             **arguments) -> Report:
    """Do a task of `TASKS` with a model and the files in the folder `data`; `arguments` are those of `load`.

    `limit` training texts are used at most, evenly spaced over the part; by default the task's own limit.
    Raises `OSError` or `ConfigurationError` for missing or malformed data before the model is loaded.
    """
    row = TASKS[task]
    train, *others = row.read(folder_of(data))
    notes = []
    if isinstance(train, Texts) and (most := limit or row.limit) and most < len(train.texts):
        notes = [f"learned from {most:,} of the {len(train.texts):,} texts of the training part (--limit)"]
        train = spaced(train, most)
    elif limit and not isinstance(train, Texts):
        raise ConfigurationError(f"limit: expected none for {task}, which learns from no texts, got {limit}")
    return replace(row.run(load(model, **arguments), train, *others, row.published), notes=notes)


def spaced(part: Texts, limit: int) -> Texts:
    """`limit` texts of a part that has more, evenly spaced."""
    kept = [number * len(part.texts) // limit for number in range(limit)]
    return Texts([part.texts[number] for number in kept], [part.labels[number] for number in kept], part.source)


def command(**arguments) -> Iterator[str]:
    """The lines of `elmo-fast evaluate`."""
    yield from evaluate(**arguments).lines()
