"""The effect of a sentence's initial state: loss per token and distance of the embeddings, by state policy.

Runs held-out sentences through one model three times: from zeros, from the warm state, and with states carried from
batch to batch (what the model was trained with). The loss of a token is that of the exported softmax over the whole
vocabulary, in both directions, `</S>` and `<S>` included where they are predicted. The distance of the embeddings is
that of the top two layers from the carried run's: the norm of the difference over the norm, over all tokens.

    python -m benchmarks.state_policies MODEL TEXT [--softmax FILE] [--warm-text FILE]
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks import common
from elmo_fast.nn.bilm import BiLm
from elmo_fast.nn.softmax_head import SOFTMAX, read_softmax
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.model import chunked_full_cross_entropy
from elmo_fast.weights.families import SOFTMAX_FILE
from elmo_fast.weights.sources import find_model

POLICIES = ("zero", "warm", "carry")


@dataclass(frozen=True)
class Policy:
    """Sums over a text: losses and predictions by direction, squared distances from carried, squared norms."""

    losses: np.ndarray
    predictions: np.ndarray
    first_losses: np.ndarray
    vectors: list[torch.Tensor]

    @property
    def loss(self) -> float:
        return float((self.losses / self.predictions).mean())


def run(bilm: BiLm, sentences, vocabulary: Vocabulary, softmax, batch_size: int) -> Policy:
    """One policy over the text, `batch_size` successive sentences at a time."""
    w, b = (torch.from_numpy(softmax[name]) for name in SOFTMAX)
    bilm.reset_states()
    losses, counts, firsts, vectors = np.zeros(2), np.zeros(2), np.zeros(2), []
    with torch.no_grad():
        for group in common.batches(sentences, batch_size):
            layers, lengths = bilm.embed_tokens(group)
            ids = np.concatenate([vocabulary.encode(sentence, split=False) for sentence in group]).astype(np.int64)
            ends = np.cumsum(lengths)
            first, last = ends - lengths, ends - 1
            for k, (half, edge, ahead) in enumerate(zip(layers[-1].chunk(2, dim=1), (last, first), (1, -1))):
                positions = np.setdiff1d(np.arange(len(ids)), edge)  # </S> has no next token, <S> none before
                found = chunked_full_cross_entropy(half[torch.from_numpy(positions)], w, b,
                                                   torch.from_numpy(ids[positions + ahead])).double().numpy()
                losses[k] += found.sum()
                counts[k] += len(positions)
                starts = np.isin(positions, (first, last)[k])
                firsts[k] += found[starts].sum()
            vectors.append(torch.cat(layers[-2:], dim=1))
    return Policy(losses, counts, firsts / len(sentences), vectors)


def distance(policy: Policy, other: Policy) -> float:
    """Norm of the difference of all vectors over the norm of the other's."""
    apart = sum(float((a - b).double().pow(2).sum()) for a, b in zip(policy.vectors, other.vectors))
    return float(np.sqrt(apart / sum(float(b.double().pow(2).sum()) for b in other.vectors)))


def main(arguments=None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model's directory")
    parser.add_argument("text", help="tokenized text, one sentence a line, in its own order")
    parser.add_argument("--softmax", type=Path, help=f"(default: {SOFTMAX_FILE} beside the model)")
    parser.add_argument("--vocab", type=Path, help="(default: vocab.txt beside the model)")
    parser.add_argument("--warm-text", type=Path, help="sentences for the warm state (default: the engine's)")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences side by side (default: %(default)s)")
    parser.add_argument("--sentences", type=int, help="(default: all)")
    parser.add_argument("--output", type=Path, help="also write JSON there")
    parsed = parser.parse_args(arguments)
    files = find_model(parsed.model)
    bilm = BiLm.from_model(parsed.model)
    if parsed.warm_text:
        bilm.warm_text = _sentences(parsed.warm_text)
    vocabulary = Vocabulary(parsed.vocab or files.vocab_file, validate_file=True)
    softmax = read_softmax(parsed.softmax or files.weight_file.parent / SOFTMAX_FILE, bilm.get_output_dim() // 2)
    sentences = _sentences(parsed.text)[: parsed.sentences]
    found = {}
    for policy in POLICIES:
        bilm.state = policy
        found[policy] = run(bilm, sentences, vocabulary, softmax, parsed.batch_size)
    table = {policy: {"loss": sums.loss, "perplexity": float(np.exp(sums.loss)),
                      "loss_by_direction": (sums.losses / sums.predictions).tolist(),
                      "loss_of_first_tokens": sums.first_losses.tolist(),
                      "loss_against_carried": sums.loss / found["carry"].loss - 1,
                      "distance_from_carried": distance(sums, found["carry"])} for policy, sums in found.items()}
    _print(table, len(sentences))
    if parsed.output:
        settings = {"sentences": len(sentences), "batch_size": parsed.batch_size, "warm_text": bool(parsed.warm_text)}
        common.write_json(parsed.output, common.document("state-policies", settings, common.rounded(table)))
    return table


def _sentences(path) -> list[list[str]]:
    with open(path, encoding="utf-8") as lines:
        return [tokens for line in lines if (tokens := line.split())]


def _print(table: dict, sentences: int) -> None:
    print(f"{sentences:,} sentences\n\n| state | loss a token | against carried | perplexity | first token, forward / "
          "backward | distance from carried |\n|---|---|---|---|---|---|")
    for policy, row in table.items():
        forward, backward = row["loss_of_first_tokens"]
        print(f"| {policy} | {row['loss']:.4f} | {100 * row['loss_against_carried']:+.2f} % | {row['perplexity']:.1f} "
              f"| {forward:.3f} / {backward:.3f} | {row['distance_from_carried']:.4f} |")


if __name__ == "__main__":
    main()
