"""Train a small part-of-speech tagger with ELMo vectors inside, and test it.

    python examples/tagger.py [--text DIRECTORY]

`Elmo` mixes the layers with weights that the tagger learns, under the dropout (0.5) and the L2 penalty on the mixture
(0.001) that the paper's authors recommend; a BiLSTM reads the mixture. The biLM itself is not trained. Training text:
Universal Dependencies EWT, development part; test text: its test part. For comparison the same tagger is trained on
random weights.
"""

import argparse
import os
import random
import time
from pathlib import Path

import torch
from torch import nn

from elmo_fast import BiLm, Elmo, Options, batch_to_ids, random_weights, read_weights
from elmo_fast.weights.sources import find_model

TEXT = Path(os.environ.get("ELMO_FAST_SHARED", Path(__file__).parents[2] / "shared")) / "text"
HIDDEN, DROPOUT, L2, BATCH = 64, 0.5, 0.001, 32


def read_conllu(path: Path) -> list[tuple[list[str], list[str]]]:
    """Words and UPOS tags of every sentence; lines of multiword tokens and empty nodes are left out."""
    sentences, words, tags = [], [], []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        fields = line.split("\t")
        if len(fields) > 3 and fields[0].isdecimal():
            words.append(fields[1])
            tags.append(fields[3])
        elif not line and words:
            sentences.append((words, tags))
            words, tags = [], []
    return sentences


class Tagger(nn.Module):
    """Mixed ELMo layers, a BiLSTM, and a score for every tag."""

    def __init__(self, bilm: BiLm, tags: int):
        super().__init__()
        self.elmo = Elmo(None, None, 1, dropout=DROPOUT, module=bilm)
        self.lstm = nn.LSTM(bilm.get_output_dim(), HIDDEN, batch_first=True, bidirectional=True)
        self.scores = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(2 * HIDDEN, tags))

    def forward(self, sentences: list[list[str]]) -> torch.Tensor:
        """Scores [tokens of all sentences, tags]."""
        output = self.elmo(batch_to_ids(sentences))
        states, _ = self.lstm(output["elmo_representations"][0])
        return self.scores(states[output["mask"].bool()])

    def penalty(self) -> torch.Tensor:
        """The L2 term of the mixture's weights."""
        return L2 * sum((parameter**2).sum() for parameter in self.elmo.scalar_mix_0.scalar_parameters)


def batches(sentences: list, shuffled: random.Random | None = None):
    """Batches of words, and the tags of their tokens one after the other."""
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number][0]))
    groups = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    if shuffled:
        shuffled.shuffle(groups)
    for group in groups:
        yield [sentences[number][0] for number in group], [tag for number in group for tag in sentences[number][1]]


def train_and_test(bilm: BiLm, train: list, test: list, epochs: int) -> float:
    """Accuracy on the test sentences."""
    torch.manual_seed(0)
    names = sorted({tag for _, tags in train for tag in tags})
    number = {name: index for index, name in enumerate(names)}
    tagger, shuffled = Tagger(bilm, len(names)), random.Random(0)
    optimizer = torch.optim.Adam([parameter for parameter in tagger.parameters() if parameter.requires_grad], lr=0.003)
    for _ in range(epochs):
        tagger.train()
        for words, tags in batches(train, shuffled):
            loss = nn.functional.cross_entropy(tagger(words), torch.tensor([number[tag] for tag in tags]))
            optimizer.zero_grad()
            (loss + tagger.penalty()).backward()
            optimizer.step()
    tagger.eval()
    right = total = 0
    with torch.no_grad():
        for words, tags in batches(test):
            predicted = tagger(words).argmax(1).tolist()
            right += sum(names[best] == tag for best, tag in zip(predicted, tags))
            total += len(tags)
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundled", help="as in elmo-fast embed --model (default: %(default)s)")
    parser.add_argument("--text", type=Path, default=TEXT, help="directory with en_ewt-ud-{dev,test}.conllu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--sentences", type=int, help="number of sentences to use, for a quick look (default: all)")
    given = parser.parse_args()
    train, test = (read_conllu(given.text / f"en_ewt-ud-{part}.conllu")[: given.sentences] for part in ("dev", "test"))
    files = find_model(given.model)
    options = Options.from_file(files.options_file)
    print(f"{len(train)} sentences to train on, {len(test)} to test on")
    for name, weights in (("this model", read_weights(files.weight_file, options)),
                          ("random weights", random_weights(options))):
        began = time.perf_counter()
        accuracy = train_and_test(BiLm(options, weights, state="zero"), train, test, given.epochs)
        print(f"{name:16}{accuracy:8.2%} of the tags right ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
