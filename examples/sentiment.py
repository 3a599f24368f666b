"""Tell good reviews from bad ones: a biLM tuned to the reviews' language, frozen, and a small classifier on its layers.

    python examples/sentiment.py [--text DIRECTORY]

1. The model goes on training as a language model on the review text of the training part, without labels.
2. It is frozen; every sentence becomes the mean and the maximum over its tokens of each layer.
3. A scalar mixture of the layers and a small classifier are trained together.

Data: sentence polarity dataset v1.0 (Pang and Lee 2005), split 80/10/10 at a fixed seed. Printed beside it: the same
classifier on layer 0 alone (no context), on the model before it was tuned, and on random weights.
"""

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from elmo_fast import BiLm, LoadedElmo, Options, ScalarMix, cli, load, random_weights
from elmo_fast.model.sources import find_model

TEXT = Path(os.environ.get("ELMO_FAST_SHARED", Path(__file__).parents[2] / "shared")) / "text"
AT_ONCE = 1000


def read_reviews(directory: Path, most: int | None) -> dict[str, list[tuple[str, int]]]:
    """(sentence, 1 for good and 0 for bad) of the three parts."""
    reviews = [(line, label) for label, name in enumerate(("neg", "pos"))
               for line in (directory / f"rt-polarity.{name}.txt").read_text(encoding="utf-8").splitlines() if line.strip()]
    random.Random(0).shuffle(reviews)
    reviews = reviews[:most]
    tenth = len(reviews) // 10
    return {"train": reviews[2 * tenth :], "heldout": reviews[:tenth], "test": reviews[tenth : 2 * tenth]}


def tuned(model: str, reviews: list[tuple[str, int]], epochs: int, folder: Path) -> Path:
    """The model's directory after it went on training on the reviews' text."""
    (folder / "reviews.txt").write_text("".join(text + "\n" for text, _ in reviews), encoding="utf-8")
    run, text, vocabulary = folder / "run", folder / "reviews.txt", folder / "vocab.txt"
    for command in (
        ["vocab", text, vocabulary],
        ["train", run, "--from-model", model, "--train", text, "--vocab", vocabulary, "--epochs", epochs, "--batch-size", 32,
         "--optimizer", "adamw", "--learning-rate", 0.0005, "--warmup-steps", 50, "--negatives", 1024, "--quiet"],
        ["export", run, folder / "tuned"],
    ):
        if status := cli.main([str(each) for each in command]):
            raise SystemExit(status)
    return folder / "tuned"


def features(model: LoadedElmo, reviews: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled layers [reviews, layers, 4 P] and labels [reviews]."""
    pooled = []
    for start in range(0, len(reviews), AT_ONCE):
        vectors = model.embed([text for text, _ in reviews[start : start + AT_ONCE]], state="zero")
        pooled += [np.concatenate([each.mean(1), each.max(1)], axis=1) for each in vectors]
    return torch.from_numpy(np.stack(pooled)), torch.tensor([label for _, label in reviews])


class Classifier(nn.Module):
    """A scalar mixture of pooled layers, then one hidden layer."""

    def __init__(self, layers: int, size: int):
        super().__init__()
        self.mix = ScalarMix(layers)
        self.scores = nn.Sequential(nn.Dropout(0.3), nn.Linear(size, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """[N, layers, size] -> [N, 2]."""
        return self.scores(self.mix(list(pooled.unbind(1))))


def accuracy(parts: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Test accuracy of the epoch that was best on the held-out part."""
    torch.manual_seed(0)
    (x, y), best = parts["train"], (0.0, 0.0)
    mean, spread = x.mean(0), x.std(0) + 1e-6
    scaled = {name: ((pooled - mean) / spread, labels) for name, (pooled, labels) in parts.items()}
    classifier = Classifier(*x.shape[1:])
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=0.001, weight_decay=0.05)
    for _ in range(15):
        classifier.train()
        for some in torch.randperm(len(y)).split(64):
            loss = nn.functional.cross_entropy(classifier(scaled["train"][0][some]), y[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        classifier.eval()
        with torch.no_grad():
            found = [(classifier(pooled).argmax(1) == labels).float().mean().item()
                     for pooled, labels in (scaled["heldout"], scaled["test"])]
        best = max(best, tuple(found), key=lambda pair: pair[0])
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundled", help="as in elmo-fast embed --model (default: %(default)s)")
    parser.add_argument("--text", type=Path, default=TEXT, help="directory with rt-polarity.{pos,neg}.txt")
    parser.add_argument("--epochs", type=float, default=3, help="passes over the review text (default: %(default)s)")
    parser.add_argument("--sentences", type=int, help="use that many only, for a quick look")
    given = parser.parse_args()
    began = time.perf_counter()
    reviews = read_reviews(given.text, given.sentences)
    print("reviews: " + ", ".join(f"{len(each)} {name}" for name, each in reviews.items()))
    options = Options.from_file(find_model(given.model).options_file)
    with tempfile.TemporaryDirectory() as folder:
        print(f"training on the review text for {given.epochs:g} epochs ...")
        models = {"tuned": load(tuned(given.model, reviews["train"], given.epochs, Path(folder)), device="cpu"),
                  "as it came": load(given.model, device="cpu"),
                  "random weights": LoadedElmo(BiLm(options, random_weights(options)))}
    rows = {}
    for name, model in models.items():
        parts = {part: features(model, each) for part, each in reviews.items()}
        rows[f"{name}, mixture of all layers"] = accuracy(parts)
        rows[f"{name}, layer 0 alone"] = accuracy({part: (x[:, :1], y) for part, (x, y) in parts.items()})
    for name, value in rows.items():
        print(f"{name:40}{value:8.2%} of the test reviews right")
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
