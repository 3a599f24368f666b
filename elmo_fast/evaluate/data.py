"""Readers of the tasks' published files, as they come, from a folder that the user names."""

import csv
import html
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from elmo_fast.arguments import check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.text.fasta import read_fasta

Tokens = list[str]


class Texts(NamedTuple):
    """Texts and their labels: of a text a string, of a text's tokens a list of strings. `source` names the files."""

    texts: list[Tokens]
    labels: list
    source: str


class Split(NamedTuple):
    """The parts of a task's data. Without `test` the training part is cross-validated; `dev` chooses the probe."""

    train: Texts
    test: Texts | None
    dev: Texts | None = None


class Pair(NamedTuple):
    """Two texts, the place of the word in each, and whether the word means the same in both."""

    texts: tuple[Tokens, Tokens]
    places: tuple[int, int]
    same: bool


class Target(NamedTuple):
    """A word in a text, at `place`, and the weights of the substitutes that people gave; `word` is lemma and class."""

    word: str
    tokens: Tokens
    place: int
    gold: dict[str, float]


def folder_of(data: str | os.PathLike) -> Path:
    """The folder of the data; `OSError` names the argument."""
    folder = Path(check_path("data", data))
    if not folder.is_dir():
        raise NotADirectoryError(f"data: expected a folder with the task's files, found "
                                 f"{'a file' if folder.exists() else 'nothing'} at {folder}")
    return folder


def find(folder: Path, *patterns: str, needed: bool = True) -> Path | None:
    """The one file, below the folder, that the first pattern with any match finds."""
    for pattern in patterns:
        found = sorted(path for path in folder.rglob(pattern) if path.is_file())
        if len(found) > 1:
            raise ConfigurationError(f"data: expected one file {pattern} below {folder}, got "
                                     f"{', '.join(str(path.relative_to(folder)) for path in found)[:300]}")
        if found:
            return found[0]
    if needed:
        raise FileNotFoundError(f"data: expected a file {' or '.join(patterns)} below {folder}, found none")
    return None


def lines_of(path: Path) -> list[str]:
    """The lines of a text in UTF-8, or else in Latin-1, in which several of these data sets were published."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").rstrip("\n").split("\n")


def _wrong(path: Path, number: int, expected: str, line: str) -> ConfigurationError:
    return ConfigurationError(f"data: expected {expected}, got {line!r:.60} at line {number} of {path}")


# ---- texts with labels ----

def read_pos(folder: Path) -> Split:
    """CoNLL-U files with train, dev and test in their names; without train, dev is the training part."""
    train, dev = (_conllu(find(folder, f"*{part}*.conllu", needed=False)) for part in ("train", "dev"))
    test = _conllu(find(folder, "*test*.conllu"))
    if not (train or dev):
        raise FileNotFoundError(f"data: expected a file *train*.conllu or *dev*.conllu below {folder}, found none")
    return Split(train or dev, test, dev if train else None)


def _conllu(path: Path | None) -> Texts | None:
    if path is None:
        return None
    texts, tags = [[]], [[]]
    for number, line in enumerate([*lines_of(path), ""], start=1):
        if not line.strip() and texts[-1]:
            texts.append([])
            tags.append([])
        elif line.strip() and not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) < 4:
                raise _wrong(path, number, "ten columns of CoNLL-U", line)
            if columns[0].isdigit():  # neither 3-4 (a joined spelling) nor 3.1 (an elided word)
                texts[-1].append(columns[1].replace(" ", "") or "_")
                tags[-1].append(columns[3])
    if not texts[0]:
        raise ConfigurationError(f"data: expected sentences of CoNLL-U, got none in {path}")
    return Texts(texts[:-1], tags[:-1], path.name)


def read_mr(folder: Path) -> Split:
    """`rt-polarity.pos` and `rt-polarity.neg` (Pang and Lee 2005), a tokenized sentence a line."""
    return _two_classes(folder, {"positive": ("rt-polarity.pos*",), "negative": ("rt-polarity.neg*",)})


def read_subj(folder: Path) -> Split:
    """`quote.tok.gt9.5000` and `plot.tok.gt9.5000` (Pang and Lee 2004), or SentEval's names of them."""
    return _two_classes(folder, {"subjective": ("quote.tok*", "subj.subjective"),
                                 "objective": ("plot.tok*", "subj.objective")})


def _two_classes(folder: Path, patterns: dict[str, tuple[str, ...]]) -> Split:
    texts, labels, names = [], [], []
    for label, names_of_class in patterns.items():
        path = find(folder, *names_of_class)
        found = [line.split() for line in lines_of(path) if line.strip()]
        texts += found
        labels += [label] * len(found)
        names.append(path.name)
    return Split(Texts(texts, labels, " and ".join(names)), None)


def read_trec(folder: Path) -> Split:
    """`train_5500.label` and `TREC_10.label` (Li and Roth 2002): a class, a colon, a subclass, and the question."""
    return Split(*(_questions(find(folder, pattern)) for pattern in ("train_5500.label*", "TREC_10.label*")))


def _questions(path: Path) -> Texts:
    texts, labels = [], []
    for number, line in enumerate(lines_of(path), start=1):
        label, _, question = line.partition(" ")
        if ":" not in label or not question.strip():
            raise _wrong(path, number, "CLASS:subclass and a question", line)
        labels.append(label.partition(":")[0])
        texts.append(question.split())
    return Texts(texts, labels, path.name)


_LEAF = re.compile(r"\([0-4] ([^()]+)\)")


def read_sst5(folder: Path) -> Split:
    """The trees of the Stanford Sentiment Treebank, `train.txt`, `dev.txt`, `test.txt`: five classes at the root."""
    train, dev, test = (_trees(find(folder, f"trees/{part}.txt", f"{part}.txt")) for part in ("train", "dev", "test"))
    return Split(train, test, dev)


def _trees(path: Path) -> Texts:
    texts, labels = [], []
    for number, line in enumerate(lines_of(path), start=1):
        if not re.match(r"\([0-4] \(?.*\)$", line.strip()):
            raise _wrong(path, number, "a tree like (3 (2 A) (4 play))", line)
        texts.append([_BRACKETS.get(leaf, leaf) for leaf in _LEAF.findall(line)])
        labels.append(line.strip()[1])
    return Texts(texts, labels, path.name)


_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


# ---- proteins ----

def read_secondary_structure(folder: Path) -> Split:
    """FLIP's `sequences.fasta`, and `sampled.fasta` with a letter (H, E, C) a residue and SET= in its headers."""
    path = find(folder, "sampled.fasta")
    known = find(folder, "sequences.fasta")
    sequences = {_name_of(header, known): sequence for header, sequence in read_fasta(known)}
    parts: dict[str, tuple[list, list]] = {part: ([], []) for part in ("train", "dev", "test")}
    for header, labels in read_fasta(path):
        name = _name_of(header, path)
        sequence = sequences.get(name)
        if sequence is None or len(sequence) != len(labels):
            raise ConfigurationError(f"data: expected a label for every residue of sequences.fasta, got {len(labels)} "
                                     f"for the {len(sequence or '')} of {name} in {path}")
        texts, all_labels = parts[_part_of(header, path)]
        texts.append(list(sequence.upper()))
        all_labels.append(list(labels))
    return _split_of(parts, path)


def _name_of(header: str, path: Path) -> str:
    if not header.split():
        raise ConfigurationError(f"data: expected an identifier in every header, got none in {path}")
    return header.split()[0]


def _part_of(header: str, path: Path) -> str:
    fields = dict(field.split("=", 1) for field in header.split() if "=" in field)
    if fields.get("SET") not in ("train", "test"):
        raise ConfigurationError(f"data: expected SET=train or SET=test in every header, got {header!r:.80} in {path}")
    return "dev" if fields.get("VALIDATION") == "True" else fields["SET"]


def _split_of(parts: dict[str, tuple[list, list]], path: Path) -> Split:
    for part in ("train", "test"):
        if not parts[part][0]:
            raise ConfigurationError(f"data: expected proteins of the {part} part, got none in {path}")
    train, dev, test = (Texts(*parts[part], path.name) for part in ("train", "dev", "test"))
    return Split(train, test, dev if dev.texts else None)


def read_localization(folder: Path) -> Split:
    """DeepLoc's FASTA file or files (`>ID Nucleus-U test`), or FLIP's `mixed_soft.csv`: ten places in the cell.

    Of several files, the one with val in its name is the dev part. Without the word test in a header, a file with test
    in its name is the test part.
    """
    table = find(folder, "mixed_soft.csv", needed=False)
    parts: dict[str, tuple[list, list]] = {part: ([], []) for part in ("train", "dev", "test")}
    paths = [table] if table else sorted(folder.rglob("*deeploc*.fasta"))
    if not paths:
        raise FileNotFoundError(f"data: expected mixed_soft.csv or files *deeploc*.fasta below {folder}, found none")
    for path in paths:
        for part, sequence, place in _rows(path) if table else _deeploc(path):
            parts[part][0].append(list(sequence.upper()))
            parts[part][1].append(place)
    return _split_of(parts, paths[0])


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not {"sequence", "target", "set"} <= row.keys():
                raise ConfigurationError(f"data: expected the columns sequence, target and set, got "
                                         f"{', '.join(map(str, row))} in {path}")
            if None in (row["sequence"], row["target"]) or row["set"] not in ("train", "test"):
                raise ConfigurationError(f"data: expected a sequence, a target and train or test as set in every row, "
                                         f"got {list(row.values())!r:.80} in {path}")
            yield "dev" if row.get("validation") == "True" else row["set"], row["sequence"], row["target"]


def _deeploc(path: Path) -> Iterator[tuple[str, str, str]]:
    named = next((part for part in ("val", "test") if part in path.stem), "train")
    for header, sequence in read_fasta(path):
        fields = header.split()
        if len(fields) < 2:
            raise ConfigurationError(f"data: expected an identifier and a place in the cell, got {header!r:.60} in "
                                     f"{path}")
        place = fields[1].rsplit("-", 1)[0] if fields[1][-2:] in ("-M", "-S", "-U") else fields[1]
        yield "test" if "test" in fields[2:] else {"val": "dev"}.get(named, named), sequence, place


# ---- words in context ----

def read_wic(folder: Path) -> tuple[list[Pair], list[Pair], str]:
    """WiC's `*.data.txt` and `*.gold.txt`: pairs to choose a threshold on, pairs to test on, and what was read.

    The test part is `test`, or `dev` where the test part's answers are not there; the threshold is chosen on `train`,
    else on `dev`.
    """
    test = "test" if find(folder, "test.gold.txt", needed=False) else "dev"
    train = "train" if find(folder, "train.gold.txt", needed=False) else "dev"
    if train == test:
        raise FileNotFoundError(f"data: expected two of train.gold.txt, dev.gold.txt and test.gold.txt below {folder}")
    return _pairs(folder, train), _pairs(folder, test), f"WiC, {train} -> {test}"


def _pairs(folder: Path, part: str) -> list[Pair]:
    path, gold = find(folder, f"{part}.data.txt"), find(folder, f"{part}.gold.txt")
    answers, pairs = [line.strip() for line in lines_of(gold)], []
    for number, line in enumerate(lines_of(path), start=1):
        columns = line.split("\t")
        if len(columns) != 5 or not re.fullmatch(r"\d+-\d+", columns[2]) or number > len(answers):
            raise _wrong(path, number, f"word, class, places, two texts, and an answer in {gold.name}", line)
        first, second = columns[3].split(), columns[4].split()
        places = tuple(map(int, columns[2].split("-")))
        if answers[number - 1] not in ("T", "F") or places[0] >= len(first) or places[1] >= len(second):
            raise _wrong(path, number, "places inside the texts, and T or F as answer", line)
        pairs.append(Pair((first, second), places, answers[number - 1] == "T"))
    return pairs


def read_substitutes(folder: Path) -> tuple[list[Target], str]:
    """SemEval-2007 task 10 (`lst_all.xml` or `lexsub_test.xml` with their gold files), or CoInCo (`coinco.xml`)."""
    if path := find(folder, "coinco.xml", needed=False):
        return list(_coinco(path)), path.name
    path = find(folder, "lst_all.xml", "lexsub_test.xml")
    gold = {}
    for number, line in enumerate(lines_of(find(folder, "lst_all.gold", "gold.test", "gold")), start=1):
        match = re.fullmatch(r"(\S+) (\S+) ::\s*(.*)", line.strip())
        if not match:
            raise _wrong(path, number, "WORD.CLASS NUMBER :: SUBSTITUTE COUNT;...", line)
        weights = (part.strip().rpartition(" ") for part in match[3].split(";") if part.strip())
        try:
            gold[match[2]] = match[1], {words: float(weight) for words, _, weight in weights}
        except ValueError:
            raise _wrong(path, number, "a number behind every substitute", line) from None
    return [Target(*_in_context(text, gold[number][0], path), gold[number][1])
            for number, text in _instances(path) if number in gold], path.name


def _instances(path: Path) -> Iterator[tuple[str, str]]:
    """(number, text with <head>) pairs. The published file is not quite XML, so it is not parsed as such."""
    text = "\n".join(lines_of(path))
    found = re.findall(r'<instance id="([^"]+)">\s*<context>(.*?)</context>', text, re.DOTALL)
    if not found:
        raise ConfigurationError(f"data: expected <instance> with <context>, found none in {path}")
    return iter(found)


def _in_context(text: str, word: str, path: Path) -> tuple[str, Tokens, int]:
    before, head, after = [*re.split(r"<head>(.*?)</head>", text, maxsplit=1), "", ""][:3]
    target = html.unescape(head).split()
    if len(target) != 1:
        raise ConfigurationError(f"data: expected one word in <head>, got {head!r:.40} in {path}")
    before, after = (html.unescape(part).split() for part in (before, after))
    return word, [*before, *target, *after], len(before)


def _coinco(path: Path) -> Iterator[Target]:
    try:
        sentences = ElementTree.parse(path).getroot().iter("sent")
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"data: expected XML, got {error} in {path}") from error
    for sentence in sentences:
        tokens = list(sentence.iter("token"))
        words = [token.get("wordform", "").replace(" ", "") or "_" for token in tokens]
        for place, token in enumerate(tokens):
            gold = {item.get("lemma", ""): float(item.get("freq", 1)) for item in token.iter("subst")}
            if gold and token.get("problematic") != "yes":
                yield Target(f"{token.get('lemma')}.{token.get('posMASC', '')[:1]}", words, place, gold)


def candidates_of(targets: Sequence[Target]) -> dict[str, list[str]]:
    """Substitutes of a single word that people gave for a word in any of its texts, sorted, without the word itself."""
    pooled: dict[str, Counter] = defaultdict(Counter)
    for target in targets:
        pooled[target.word].update(target.gold)
    return {word: sorted(name for name in names if name and " " not in name and name != word.split(".")[0])
            for word, names in pooled.items()}
