"""Tell good reviews from bad ones: a biLM tuned to the reviews' language, frozen, and a small classifier on its layers.

    python examples/sentiment.py [--text DIRECTORY]

1. The model is trained further as a language model on the review text of the training part, without labels.
2. The model is frozen, and computes a vector per layer for every token.
3. A scalar mixture of the layers, weighted means over the tokens and a small classifier are trained together.

Data: sentence polarity dataset v1.0 (Pang and Lee 2005), split 80/10/10 with a fixed seed. For comparison the same
classifier is trained on layer 0 only (no context), on the model before it was tuned, and on random weights, each with
the labels of all training reviews and with the labels of 500 reviews.
"""

import argparse
import copy
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from elmo_fast import BiLm, LoadedElmo, Options, ScalarMix, cli, load, random_weights
from elmo_fast.weights.sources import find_model

TEXT = Path(os.environ.get("ELMO_FAST_SHARED", Path(__file__).parents[2] / "shared")) / "text"
BATCH = 1000  # reviews embedded together
EPOCHS = 12  # of the classifier
FEW, SEEDS = 500, 3


def read_reviews(directory: Path, most: int | None) -> dict[str, list[tuple[str, int]]]:
    """(sentence, 1 for good and 0 for bad) of the three parts."""
    reviews = [(line, label) for label, name in enumerate(("neg", "pos"))
               for line in (directory / f"rt-polarity.{name}.txt").read_text(encoding="utf-8").splitlines()
               if line.strip()]
    random.Random(0).shuffle(reviews)
    reviews = reviews[:most]
    tenth = len(reviews) // 10
    return {"train": reviews[2 * tenth :], "heldout": reviews[:tenth], "test": reviews[tenth : 2 * tenth]}


def tuned(model: str, reviews: list[tuple[str, int]], epochs: int, folder: Path) -> Path:
    """The model's directory after further training on the reviews' text."""
    (folder / "reviews.txt").write_text("".join(text + "\n" for text, _ in reviews), encoding="utf-8")
    run, text, vocabulary = folder / "run", folder / "reviews.txt", folder / "vocab.txt"
    for command in (
        ["vocab", text, vocabulary],
        ["train", run, "--from-model", model, "--train", text, "--vocab", vocabulary, "--epochs", epochs,
         "--batch-size", 32, "--optimizer", "adamw", "--learning-rate", 0.0005, "--warmup-steps", 50,
         "--negatives", 1024, "--quiet"],
        ["export", run, folder / "tuned"],
    ):
        if status := cli.main(list(map(str, command))):
            raise SystemExit(status)
    return folder / "tuned"


class Reviews:
    """Vectors of all tokens of reviews, one review after another [tokens, layers, 2 P], and the reviews' labels."""

    def __init__(self, model: LoadedElmo, reviews: list[tuple[str, int]]):
        vectors = []
        for start in range(0, len(reviews), BATCH):
            vectors += model.embed([text for text, _ in reviews[start : start + BATCH]])
        self.tokens = torch.from_numpy(np.concatenate([layers.swapaxes(0, 1) for layers in vectors]))
        self.labels = torch.tensor([label for _, label in reviews])
        self.lengths = torch.tensor([layers.shape[1] for layers in vectors])
        self.sequence_starts = self.lengths.cumsum(0) - self.lengths

    def layer(self, k: int) -> "Reviews":
        """The same reviews with a single layer."""
        chosen = copy.copy(self)
        chosen.tokens = self.tokens[:, k : k + 1].contiguous()
        return chosen

    def tokens_of(self, which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors of the tokens of reviews `which`, and the index in `which` of a token's review [tokens]."""
        lengths = self.lengths[which]
        owner = torch.repeat_interleave(torch.arange(len(which)), lengths)
        within = torch.arange(len(owner)) - (lengths.cumsum(0) - lengths)[owner]
        return self.tokens[self.sequence_starts[which][owner] + within], owner


class Classifier(nn.Module):
    """A scalar mixture of the layers, a hidden layer at every token, and weighted means over the tokens."""

    def __init__(self, layers: int, size: int, hidden: int = 256, means: int = 2):
        super().__init__()
        self.mix, self.drop = ScalarMix(layers), nn.Dropout(0.3)
        self.hidden, self.weights = nn.Linear(size, hidden), nn.Linear(hidden, means)
        self.scores = nn.Linear(hidden * means, 2)

    def forward(self, tokens: torch.Tensor, owner: torch.Tensor, reviews: int) -> torch.Tensor:
        """tokens [M, layers, size], owner [M] -> [reviews, 2]."""
        hidden = torch.relu(self.hidden(self.drop(self.mix(list(tokens.unbind(1))))))  # [M, hidden]
        weights = self.weights(hidden).clamp(-15, 15).exp()  # [M, means]
        weighted = (weights[:, :, None] * hidden[:, None]).flatten(1)
        sums = weighted.new_zeros(reviews, weighted.shape[1]).index_add(0, owner, weighted)
        totals = weights.new_zeros(reviews, weights.shape[1]).index_add(0, owner, weights)
        means = sums.unflatten(1, (weights.shape[1], -1)) / totals[:, :, None]
        return self.scores(self.drop(means.flatten(1)))


def accuracy(parts: dict[str, Reviews], labelled: int, seed: int = 0) -> float:
    """Test accuracy after the epoch that was best on the held-out part, learned from the first `labelled` reviews."""
    torch.manual_seed(seed)
    train, best = parts["train"], (0.0, 0.0)
    mean, spread = train.tokens.mean(0), train.tokens.std(0) + 1e-6

    def scores(part: Reviews, which: torch.Tensor) -> torch.Tensor:
        tokens, owner = part.tokens_of(which)
        return classifier((tokens - mean) / spread, owner, len(which))

    classifier = Classifier(*train.tokens.shape[1:])
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=0.003, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1 / EPOCHS, EPOCHS)
    for _ in range(EPOCHS):
        classifier.train()
        for batch in torch.randperm(labelled).split(64 if labelled > FEW else 16):
            loss = nn.functional.cross_entropy(scores(train, batch), train.labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate.step()
        classifier.eval()
        with torch.no_grad():
            accuracies = [(scores(part, torch.arange(len(part.labels))).argmax(1) == part.labels).float().mean().item()
                          for part in (parts["heldout"], parts["test"])]
        best = max(best, tuple(accuracies), key=lambda pair: pair[0])
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundled", help="as in elmo-fast embed --model (default: %(default)s)")
    parser.add_argument("--text", type=Path, default=TEXT, help="directory with rt-polarity.{pos,neg}.txt")
    parser.add_argument("--epochs", type=float, default=3, help="passes over the review text (default: %(default)s)")
    parser.add_argument("--sentences", type=int, help="number of reviews to use, for a quick look (default: all)")
    given = parser.parse_args()
    began = time.perf_counter()
    reviews = read_reviews(given.text, given.sentences)
    print("reviews: " + ", ".join(f"{len(part)} {name}" for name, part in reviews.items()))
    options = Options.from_file(find_model(given.model).options_file)
    with tempfile.TemporaryDirectory() as folder:
        print(f"training on the review text for {given.epochs:g} epochs ...")
        models = {"tuned": load(tuned(given.model, reviews["train"], given.epochs, Path(folder)), device="cpu"),
                  "as it came": load(given.model, device="cpu"),
                  "random weights": LoadedElmo(BiLm(options, random_weights(options)))}
    every = len(reviews["train"])
    few = min(FEW, every)
    print(f"test reviews right, from the labels of {every} reviews and of {few} (mean of {SEEDS} runs):")
    for name, model in models.items():
        parts = {part: Reviews(model, chosen) for part, chosen in reviews.items()}
        for what, chosen in (("mixture of all layers", parts),
                             ("layer 0 alone", {part: vectors.layer(0) for part, vectors in parts.items()})):
            right = accuracy(chosen, every), np.mean([accuracy(chosen, few, seed) for seed in range(SEEDS)])
            print(f"{name + ', ' + what:40}{right[0]:8.2%}{right[1]:8.2%}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
