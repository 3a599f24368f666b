"""Tokens by `tokenizer` name against those of treebanks and texts: `python -m benchmarks.tokenization FILE...`.

A treebank is a CoNLL-U file with `# text`; a text has a tokenized sentence a line, and is detokenized by a few rules.
Prints the F1 of tokens in %, and the share of sentences in which all are equal.
"""

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from elmo_fast.arguments import TOKENIZERS
from elmo_fast.text.tokenizers import find_tokenizer

Pair = tuple[str, Sequence[str]]  # a raw sentence and its tokens


def read_treebank(path: Path) -> Iterator[Pair]:
    """Sentences of a CoNLL-U file: `# text` and the forms."""
    with path.open(encoding="utf-8") as lines:
        for is_blank, group in itertools.groupby(lines, str.isspace):
            sentence = [] if is_blank else [line.rstrip("\n") for line in group]
            raw = [line.removeprefix("# text = ") for line in sentence if line.startswith("# text = ")]
            rows = [line.split("\t") for line in sentence if line[:1] != "#"]
            if raw:
                yield raw[0], [row[1] for row in rows if row[0].isdecimal()]


def detokenize(tokens: Sequence[str]) -> str:
    """A sentence as it would be written: quotes open and close by turns."""
    text = re.sub(r"\b([oOdDyYlL]|ne) ' (?=\w)", r"\1'", " ".join(tokens))
    text = re.sub(r"\b([A-Za-z]+) (n't|'s|'ll|'m|'ve|'d|'re)\b", r"\1\2", text)
    text = re.sub(r" ?\u2014 ?", "\u2014", re.sub(r" ([.,;:!?)])", r"\1", text).replace("( ", "("))
    seen, result, is_open, words = {'"': 0, "'": 0}, "", True, text.split(" ")
    for number, word in enumerate(words, start=1):
        if word not in seen:
            result, is_open = result + ("" if is_open else " ") + word, False
            continue
        seen[word] += 1
        opens = seen[word] % 2 == 1 and number < len(words)
        before = " " if opens and not is_open and not result.endswith(("(", "\u2014")) else ""
        result, is_open = result + before + word, opens
    return result


def read_text(path: Path) -> Iterator[Pair]:
    """Lines as they would be written, and their tokens."""
    with path.open(encoding="utf-8") as lines:
        for tokens in filter(None, map(str.split, lines)):
            yield detokenize(tokens), tokens


def spans(tokens: Sequence[str]) -> set[tuple[int, int]]:
    """Begin and end of every token in the text without whitespace."""
    ends = list(itertools.accumulate(len("".join(token.split())) for token in tokens))
    return set(zip([0, *ends], ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a treebank is named .conllu")
    for path in parser.parse_args().files:
        pairs = list(read_treebank(path) if path.suffix == ".conllu" else read_text(path))
        for tokenizer in TOKENIZERS:
            found = [(spans(find_tokenizer(tokenizer)(raw)), spans(tokens)) for raw, tokens in pairs]
            common = sum(len(ours & theirs) for ours, theirs in found)
            total = sum(len(ours) + len(theirs) for ours, theirs in found)
            equal = sum(ours == theirs for ours, theirs in found)
            print(f"{path.name}\t{tokenizer}\tF1 {200 * common / total:.1f}\tequal {100 * equal / len(found):.1f} %")


if __name__ == "__main__":
    main()
