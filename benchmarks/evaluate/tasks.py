"""The tasks by name: their data, how they are done, and what others published."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.evaluate import contexts, data, probes
from benchmarks.evaluate.data import Split, Texts
from benchmarks.evaluate.report import Report
from elmo_fast.embed.api import LoadedElmo, load

_NOT_COMPARED = "the ELMo of the paper, see Perone et al. 2018, arXiv:1806.06259 (SentEval); no figure is quoted here"


class Task(NamedTuple):
    """`read` reads the data from a folder, `run` does the task with a model and the data.

    At most `limit` texts of the training part are used, unless the user gives another number.
    """

    read: Callable[[Path], Split]
    run: Callable[[LoadedElmo, Split], Report]
    published: str
    limit: int | None = None


def _classes(title: str, grams: str = "TF-IDF of words and pairs", longest: int = 2):
    return partial(probes.classify, title=title, grams=grams, longest=longest)


TASKS: dict[str, Task] = {
    "pos": Task(data.read_pos, probes.part_of_speech, "linear probes on EWT by ELMo (original): Liu et al. 2019, "
                "arXiv:1903.08855, Table 1; no figure is quoted here"),
    "wic": Task(data.read_wic, contexts.wic, "ELMo 57.7 (Pilehvar and Camacho-Collados 2019, arXiv:1808.09121; "
                "a threshold on the cosine)"),
    "mr": Task(data.read_mr, _classes("sentiment of film reviews"), _NOT_COMPARED),
    "sst5": Task(data.read_sst5, _classes("sentiment in five classes"), "ELMo 54.7 ± 0.5 in a biattentive network that "
                 "was trained for the task (Peters et al. 2018, arXiv:1802.05365), so not by a linear probe"),
    "trec": Task(data.read_trec, _classes("class of questions"), _NOT_COMPARED),
    "subj": Task(data.read_subj, _classes("subjective or objective"), _NOT_COMPARED),
    "secondary_structure": Task(data.read_secondary_structure, probes.secondary_structure, "SeqVec 79 ± 1 by a "
                                "convolutional network, on other test sets (Heinzinger et al. 2019, BMC Bioinformatics "
                                "20:723)", 1000),
    "localization": Task(data.read_localization, _classes("place in the cell", "TF-IDF of 1 to 3 residues", 3),
                         "SeqVec 68 ± 1 by a network with a hidden layer, on DeepLoc's test part (Heinzinger et al. "
                         "2019, BMC Bioinformatics 20:723)"),
    "lexical_substitution": Task(data.read_substitutes, contexts.lexical_substitution, "nothing was found of an "
                                 "ELMo whose candidates are ranked by cosine"),
}


def evaluate(model: str | os.PathLike | LoadedElmo, task: str, data: str | os.PathLike, limit: int | None = None,
             **arguments) -> Report:
    """Do a task of `TASKS` with a model and the files in the folder `data`; `arguments` are those of `load`.

    `limit` training texts are used at most, evenly spaced over the part; by default the task's own limit.
    Raises `OSError` or `ConfigurationError` for missing or malformed data before the model is loaded.
    """
    row = TASKS[task]
    if not Path(data).is_dir():
        raise NotADirectoryError(f"data: expected a folder with the task's files, found none at {data}")
    split, notes = row.read(Path(data)), []
    if (most := limit or row.limit) and most < (texts := len(split.train.texts)):
        notes = [f"learned from {most:,} of the {texts:,} texts of the training part (--limit)"]
        split = split._replace(train=spaced(split.train, most))
    elmo = load(model, **arguments) if isinstance(model, (str, os.PathLike)) else model
    return replace(row.run(elmo, split), published=row.published, notes=notes)


def spaced(part: Texts, limit: int) -> Texts:
    """`limit` texts of a part that has more, evenly spaced."""
    kept = [number * len(part.texts) // limit for number in range(limit)]
    return Texts([part.texts[number] for number in kept], [part.labels[number] for number in kept], part.source)
