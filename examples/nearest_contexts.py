"""A word in its senses: occurrences of an ambiguous word, and which other occurrences a model finds nearest.

    python examples/nearest_contexts.py MODEL TEXT [--words play left light]

After table 4 of Peters et al. 2018. TEXT is UTF-8, one tokenized sentence a line, and should not have been trained on.
"""

import argparse

import numpy as np
import torch

from elmo_fast import BiLm

WORDS = ["play", "left", "light", "kind", "mean", "rest"]
_AROUND = 7  # words shown on either side


def occurrences(sentences: list[list[str]], word: str) -> list[tuple[int, int]]:
    """(sentence, position) wherever the word stands, in small or capital letters."""
    return [(number, place) for number, sentence in enumerate(sentences)
            for place, token in enumerate(sentence) if token.lower() == word]


def vectors_of(bilm: BiLm, sentences: list[list[str]], places: list[tuple[int, int]],
               layer: int | None) -> torch.Tensor:
    """Unit vectors at positions, [N, 2 P]: of a layer, or the mean of the layers with context."""
    found = []
    with torch.no_grad():
        for number, place in places:
            layers, _ = bilm.embed_tokens([sentences[number]])
            here = torch.stack(layers)[:, place + 1]  # <S> comes first
            found.append(here[1:].mean(0) if layer is None else here[layer])
    vectors = torch.stack(found)
    return torch.nn.functional.normalize(vectors - vectors.mean(0), dim=1)


def shown(sentence: list[str], place: int) -> str:
    """The word in brackets with a few words on either side."""
    before = sentence[max(0, place - _AROUND) : place]
    return " ".join([*before, f"[{sentence[place]}]", *sentence[place + 1 : place + 1 + _AROUND]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model's directory, ZIP, URL or name")
    parser.add_argument("text", help="tokenized text, one sentence a line")
    parser.add_argument("--words", nargs="+", default=WORDS)
    parser.add_argument("--queries", type=int, default=4, help="occurrences to compare (default: %(default)s)")
    parser.add_argument("--neighbours", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--layer", type=int, help="(default: the mean of all but the first)")
    arguments = parser.parse_args()
    bilm = BiLm.from_model(arguments.model, state="warm")
    with open(arguments.text, encoding="utf-8") as lines:
        sentences = [tokens for line in lines if (tokens := line.split())]
    for word in arguments.words:
        places = occurrences(sentences, word)
        print(f"\n{word}: {len(places)} occurrences")
        if len(places) < 3:
            continue
        vectors = vectors_of(bilm, sentences, places, arguments.layer)
        likeness = (vectors @ vectors.t()).fill_diagonal_(-1).numpy()
        for query in np.linspace(0, len(places) - 1, min(arguments.queries, len(places))).astype(int):
            number, place = places[query]
            print(f"\n    {shown(sentences[number], place)}")
            for other in np.argsort(-likeness[query])[: arguments.neighbours]:
                number, place = places[other]
                print(f"      {likeness[query, other]:+.2f}  {shown(sentences[number], place)}")


if __name__ == "__main__":
    main()
