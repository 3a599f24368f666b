"""Part of speech from single layers: a linear probe that shows what context adds to a model's vectors.

    python examples/pos_probe.py MODEL TRAIN.conllu TEST.conllu

fits scikit-learn's logistic regression to the vectors of TRAIN's tokens (universal part-of-speech tags) and prints its
accuracy on TEST, for every layer, for a scalar mix of all layers, and for the same architecture with random weights.
The mix's weights are learned on TRAIN together with a linear layer, then fixed. Needs scikit-learn.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch

from elmo_fast import BiLm, Options, ScalarMix, random_weights
from elmo_fast.model.sources import find_model


@dataclass(frozen=True)
class Tagged:
    """Sentences with the tags of all their tokens."""

    sentences: list[list[str]]
    tags: np.ndarray

    @classmethod
    def read(cls, path: str) -> "Tagged":
        sentences, tags, words = [], [], []
        with open(path, encoding="utf-8") as lines:
            for line in [*lines, "\n"]:
                if not line.strip():
                    sentences += [words] if words else []
                    words = []
                elif not line.startswith("#"):
                    number, word, _, tag = line.split("\t")[:4]
                    if number.isdigit():  # neither 3-4 (a joined spelling) nor 3.1 (an elided word)
                        words.append(word.replace(" ", ""))
                        tags.append(tag)
        return cls(sentences, np.array(tags))


def layers_of(bilm: BiLm, sentences: list[list[str]]) -> torch.Tensor:
    """Vectors of all tokens, boundaries left out: [tokens, layers, 2 P]."""
    parts = []
    with torch.no_grad():
        for first in range(0, len(sentences), 64):
            layers, lengths = bilm.embed_tokens(sentences[first : first + 64])
            ends = np.cumsum(lengths)
            inner = np.setdiff1d(np.arange(ends[-1]), [*(ends - lengths), *(ends - 1)])
            parts.append(torch.stack(layers, dim=1)[torch.from_numpy(inner)])
    return torch.cat(parts)


def learned_mix(vectors: torch.Tensor, tags: np.ndarray, epochs: int = 5) -> ScalarMix:
    """A scalar mix, learned together with a linear layer that predicts the tags of `vectors` [N, layers, D]."""
    torch.manual_seed(0)
    names, wanted = np.unique(tags, return_inverse=True)
    scale = vectors.std(dim=(0, 2), keepdim=True)
    mix, linear = ScalarMix(vectors.shape[1]), torch.nn.Linear(vectors.shape[2], len(names))
    optimizer = torch.optim.Adam([{"params": linear.parameters()}, {"params": mix.parameters(), "lr": 0.02}], lr=3e-3)
    wanted = torch.from_numpy(wanted)
    for _ in range(epochs):
        for rows in torch.randperm(len(vectors)).split(256):
            scores = linear(mix((vectors[rows] / scale).unbind(1)))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(scores, wanted[rows]).backward()
            optimizer.step()
    return mix.requires_grad_(False)


def accuracy(train: torch.Tensor, train_tags, test: torch.Tensor, test_tags) -> float:
    """Fraction of test tags that a logistic regression on scaled vectors predicts correctly."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
    return float(probe.fit(train.numpy(), train_tags).score(test.numpy(), test_tags))


def probe(bilm: BiLm, train: Tagged, test: Tagged) -> dict[str, float]:
    """Accuracy of a probe on each layer, and on the mix of all layers, by name."""
    learned, tested = layers_of(bilm, train.sentences), layers_of(bilm, test.sentences)
    inputs = {f"layer {k}": (learned[:, k], tested[:, k]) for k in range(learned.shape[1])}
    mix, scale = learned_mix(learned, train.tags), learned.std(dim=(0, 2), keepdim=True)
    inputs["mix of all layers"] = tuple(mix((vectors / scale).unbind(1)) for vectors in (learned, tested))
    return {name: accuracy(first, train.tags, second, test.tags) for name, (first, second) in inputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model's directory, ZIP, URL or name")
    parser.add_argument("train", help="CoNLL-U file to learn from")
    parser.add_argument("test", help="CoNLL-U file to test on")
    parser.add_argument("--state", default="warm", choices=("zero", "warm"))
    arguments = parser.parse_args()
    train, test = Tagged.read(arguments.train), Tagged.read(arguments.test)
    options = Options.from_file(find_model(arguments.model).options_file)
    trained = probe(BiLm.from_model(arguments.model, state=arguments.state), train, test)
    chance = probe(BiLm(options, random_weights(options, seed=1), state=arguments.state), train, test)
    print(f"accuracy of a linear probe for part of speech: {len(train.tags):,} tokens to learn from, "
          f"{len(test.tags):,} to test on, state {arguments.state}\n")
    print("| vectors | this model | random weights |\n|---|---|---|")
    for name, value in trained.items():
        print(f"| {name} | {100 * value:.1f} % | {100 * chance[name]:.1f} % |")
    mixed = 100 * trained["mix of all layers"]
    print(f"\nthe mix is {mixed - 100 * trained['layer 0']:+.1f} points from layer 0, and "
          f"{mixed - 100 * chance['mix of all layers']:+.1f} from random weights")


if __name__ == "__main__":
    main()
