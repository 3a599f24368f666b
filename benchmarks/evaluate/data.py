"""Readers of the tasks' published files, as they come, from a folder that the user names."""

import csv
import html
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from elmo_fast.errors import ConfigurationError
from elmo_fast.text.fasta import read_fasta
from elmo_fast.text.records import conllu_column

Tokens = list[str]
_PARTS = "train", "test", "dev"


class Pair(NamedTuple):
    """Two texts, and the place of the word in each."""

    texts: tuple[Tokens, Tokens]
    places: tuple[int, int]


class Target(NamedTuple):
    """A word, its lemma and class, in a text at `place`."""

    word: str
    tokens: Tokens
    place: int


class Texts(NamedTuple):
    """Texts, pairs or targets, and a label each; `source` names the files.

    The label of a text is a string or a list with a string a token, of a pair whether the word means the same, and of a
    target the weights of the substitutes that people gave.
    """

    texts: list
    labels: list
    source: str


class Split(NamedTuple):
    """The parts of a task's data. Without `test` the training part is cross-validated; `dev` chooses the probe."""

    train: Texts
    test: Texts | None = None
    dev: Texts | None = None


def find(folder: Path, *patterns: str) -> Path:
    """The one file below the folder that fits the first pattern with any match."""
    found = find_any(folder, *patterns)
    if found is None:
        raise FileNotFoundError(f"data: expected a file {' or '.join(patterns)} below {folder}, found none")
    return found


def find_any(folder: Path, *patterns: str) -> Path | None:
    """As `find`, but None where no file fits."""
    for pattern in patterns:
        found = sorted(path for path in folder.rglob(pattern) if path.is_file())
        if len(found) > 1:
            raise ConfigurationError(f"data: expected one file {pattern} below {folder}, got "
                                     f"{', '.join(str(path.relative_to(folder)) for path in found)[:300]}")
        if found:
            return found[0]
    return None


def lines_of(path: Path) -> list[str]:
    """The lines of a text in UTF-8, or else in Latin-1, in which several of these data sets were published."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").rstrip("\n").split("\n")


def _read_lines(path: Path, expected: str, parse: Callable[[str], tuple | None]) -> list[tuple]:
    """What `parse` makes of every line; an error names the line for which `parse` returns None."""
    found = []
    for number, line in enumerate(lines_of(path), start=1):
        if (parsed := parse(line)) is None:
            raise ConfigurationError(f"data: expected {expected}, got {line!r:.60} at line {number} of {path}")
        found.append(parsed)
    return found


# ---- texts with labels ----


def read_pos(folder: Path) -> Split:
    """CoNLL-U files with train, dev and test in their names; without train, dev is the training part."""
    train, dev = (find_any(folder, f"*{part}*.conllu") for part in ("train", "dev"))
    test = _conllu(find(folder, "*test*.conllu"))
    if train is None:
        return Split(_conllu(dev or find(folder, "*train*.conllu", "*dev*.conllu")), test)
    return Split(_conllu(train), test, _conllu(dev) if dev else None)


def _conllu(path: Path) -> Texts:
    texts, tags = ([words for words in conllu_column(lines_of(path), str(path), column) if words] for column in (1, 3))
    if not texts:
        raise ConfigurationError(f"data: expected sentences of CoNLL-U, got none in {path}")
    return Texts(texts, tags, path.name)


def read_mr(folder: Path) -> Split:
    """`rt-polarity.pos` and `rt-polarity.neg` (Pang and Lee 2005), a tokenized sentence a line."""
    return _two_classes(positive=find(folder, "rt-polarity.pos*"), negative=find(folder, "rt-polarity.neg*"))


def read_subj(folder: Path) -> Split:
    """`quote.tok.gt9.5000` and `plot.tok.gt9.5000` (Pang and Lee 2004), or SentEval's names of them."""
    return _two_classes(subjective=find(folder, "quote.tok*", "subj.subjective"),
                        objective=find(folder, "plot.tok*", "subj.objective"))


def _two_classes(**paths: Path) -> Split:
    rows = [(line.split(), label) for label, path in paths.items() for line in lines_of(path) if line.strip()]
    return Split(_texts(rows, " and ".join(path.name for path in paths.values())))


def _texts(rows: Iterable[tuple], source: str) -> Texts:
    rows = list(rows)
    return Texts([text for text, _ in rows], [label for _, label in rows], source)


def read_trec(folder: Path) -> Split:
    """`train_5500.label` and `TREC_10.label` (Li and Roth 2002): a class, a colon, a subclass, and the question."""
    def question(line: str) -> tuple[Tokens, str] | None:
        label, _, text = line.partition(" ")
        return (text.split(), label.partition(":")[0]) if ":" in label and text.strip() else None

    paths = [find(folder, pattern) for pattern in ("train_5500.label*", "TREC_10.label*")]
    return Split(*(_texts(_read_lines(path, "CLASS:subclass and a question", question), path.name) for path in paths))


_LEAF = re.compile(r"\([0-4] ([^()]+)\)")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def read_sst5(folder: Path) -> Split:
    """The trees of the Stanford Sentiment Treebank, `train.txt`, `dev.txt`, `test.txt`: five classes at the root."""
    def tree(line: str) -> tuple[Tokens, str] | None:
        leaves = [_BRACKETS.get(leaf, leaf) for leaf in _LEAF.findall(line)]
        return (leaves, line.strip()[1]) if re.match(r"\([0-4] \(?.*\)$", line.strip()) else None

    paths = [find(folder, f"trees/{part}.txt", f"{part}.txt") for part in _PARTS]
    return Split(*(_texts(_read_lines(path, "a tree like (3 (2 A) (4 play))", tree), path.name) for path in paths))


# ---- proteins ----


def read_secondary_structure(folder: Path) -> Split:
    """FLIP's `sequences.fasta`, and `sampled.fasta` with a letter (H, E, C) a residue and SET= in its headers."""
    path = find(folder, "sampled.fasta")
    sequences = {_name_of(header): sequence for header, sequence in read_fasta(find(folder, "sequences.fasta"))}
    rows = []
    for header, labels in read_fasta(path):
        name, fields = _name_of(header), dict(field.split("=", 1) for field in header.split() if "=" in field)
        sequence = sequences.get(name, "")
        if len(sequence) != len(labels):
            raise ConfigurationError(f"data: expected a label for every residue of sequences.fasta, got {len(labels)} "
                                     f"for the {len(sequence)} of {name} in {path}")
        rows.append((_part_of(fields.get("SET"), fields.get("VALIDATION"), header, path), sequence, list(labels)))
    return _proteins(rows, path)


def _name_of(header: str) -> str:
    return next(iter(header.split()), "")


def _part_of(part: str | None, validation: str | None, row: object, path: Path) -> str:
    """The part of a row of FLIP's files."""
    if part not in ("train", "test"):
        raise ConfigurationError(f"data: expected train or test as set, got {row!r:.80} in {path}")
    return "dev" if validation == "True" else part


def _proteins(rows: Iterable[tuple[str, str, object]], path: Path) -> Split:
    """The split of (part, sequence, label) rows."""
    parts: dict[str, list[tuple]] = {part: [] for part in _PARTS}
    for part, sequence, label in rows:
        parts[part].append((list(sequence.upper()), label))
    for part in ("train", "test"):
        if not parts[part]:
            raise ConfigurationError(f"data: expected proteins of the {part} part, got none in {path}")
    train, test, dev = (_texts(parts[part], path.name) for part in _PARTS)
    return Split(train, test, dev if dev.texts else None)


def read_localization(folder: Path) -> Split:
    """DeepLoc's FASTA file (`>ID Nucleus-U test`), or FLIP's `mixed_soft.csv`: ten places in the cell."""
    if table := find_any(folder, "mixed_soft.csv"):
        return _proteins(_flip(table), table)
    path = find(folder, "*deeploc*.fasta")
    return _proteins(_deeploc(path), path)


def _flip(path: Path) -> Iterator[tuple[str, str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not row.get("sequence") or not row.get("target"):
                raise ConfigurationError(f"data: expected the columns sequence, target and set in every row, got "
                                         f"{row!r:.80} in {path}")
            part = _part_of(row.get("set"), row.get("validation"), row, path)
            yield part, row["sequence"], row["target"]


def _deeploc(path: Path) -> Iterator[tuple[str, str, str]]:
    for header, sequence in read_fasta(path):
        fields = header.split()
        if len(fields) < 2:
            raise ConfigurationError(f"data: expected an identifier and a place in the cell, got {header!r:.60} in "
                                     f"{path}")
        yield "test" if "test" in fields[2:] else "train", sequence, re.sub("-[MSU]$", "", fields[1])


# ---- words in context ----


def read_wic(folder: Path) -> Split:
    """WiC's `*.data.txt` and `*.gold.txt`; the threshold is chosen on the training part.

    The test part is `test`, or `dev` where the answers of `test` are missing; the training part is `train`, else `dev`.
    """
    test = "test" if find_any(folder, "test.gold.txt") else "dev"
    train = "train" if find_any(folder, "train.gold.txt") else "dev"
    if train == test:
        raise FileNotFoundError(f"data: expected two of train.gold.txt, dev.gold.txt and test.gold.txt below {folder}")
    return Split(_pairs(folder, train), _pairs(folder, test))


def _pairs(folder: Path, part: str) -> Texts:
    answers = iter(lines_of(find(folder, f"{part}.gold.txt")))

    def pair(line: str) -> tuple[Pair, bool] | None:
        match = re.fullmatch(r"[^\t]*\t[^\t]*\t(\d+)-(\d+)\t([^\t]*)\t([^\t]*)", line)
        answer = next(answers, "").strip()
        if match is None or answer not in ("T", "F"):
            return None
        places, texts = (int(match[1]), int(match[2])), (match[3].split(), match[4].split())
        is_inside = places[0] < len(texts[0]) and places[1] < len(texts[1])
        return (Pair(texts, places), answer == "T") if is_inside else None

    expected = f"word, class, places inside two texts, the texts, and T or F in {part}.gold.txt"
    return _texts(_read_lines(find(folder, f"{part}.data.txt"), expected, pair), part)


def read_substitutes(folder: Path) -> Split:
    """SemEval-2007 task 10 (`lst_all.xml` or `lexsub_test.xml` with their gold files), or CoInCo (`coinco.xml`)."""
    if path := find_any(folder, "coinco.xml"):
        return Split(_texts(_coinco(path), path.name))
    path = find(folder, "lst_all.xml", "lexsub_test.xml")
    # The published file is not quite XML, so it is not parsed as such.
    instances = re.findall(r'<instance id="([^"]+)">\s*<context>(.*?)<head>(.*?)</head>(.*?)</context>',
                           "\n".join(lines_of(path)), re.DOTALL)
    if not instances:
        raise ConfigurationError(f"data: expected <instance> with <context> and <head>, found none in {path}")
    gold = dict(_read_lines(find(folder, "lst_all.gold", "gold.test", "gold"),
                            "WORD.CLASS NUMBER :: SUBSTITUTE COUNT;...", _answer))
    rows = []
    for number, *parts in instances:
        before, head, after = (html.unescape(part).split() for part in parts)
        if number in gold:
            word, weights = gold[number]
            rows.append((Target(word, [*before, " ".join(head), *after], len(before)), weights))
    return Split(_texts(rows, path.name))


def _answer(line: str) -> tuple[str, tuple[str, dict[str, float]]] | None:
    """The number, word and weights of `bright.a 1 :: clever 3;very smart 1;`."""
    match = re.fullmatch(r"(\S+) (\S+) ::\s*(.*)", line.strip())
    weights = [part.strip().rpartition(" ") for part in match[3].split(";") if part.strip()] if match else []
    if match is None or not all(weight.isdecimal() for _, _, weight in weights):
        return None
    return match[2], (match[1], {words: float(weight) for words, _, weight in weights})


def _coinco(path: Path) -> Iterator[tuple[Target, dict[str, float]]]:
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
                yield Target(f"{token.get('lemma')}.{token.get('posMASC', '')[:1]}", words, place), gold


def candidates_of(part: Texts) -> dict[str, list[str]]:
    """Substitutes of a single word that people gave for a word in any of its texts, sorted, without the word itself."""
    pooled: dict[str, set[str]] = defaultdict(set)
    for target, gold in zip(part.texts, part.labels):
        pooled[target.word].update(gold)
    return {word: sorted(name for name in names if name and " " not in name and name != word.split(".")[0])
            for word, names in pooled.items()}
