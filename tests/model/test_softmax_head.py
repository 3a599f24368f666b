import math

import numpy as np
import pytest

from elmo_fast import ConfigurationError, Options, read_weights
from elmo_fast.nn.softmax_head import SentenceScore, SoftmaxHead, read_softmax
from elmo_fast.train.evaluate import perplexity_of
from tests.support.files import tiny
from tests.support.plain_elmo import PlainElmo
from tests.support.softmax import SENTENCES, WORDS, head_of, write_softmax_model


@pytest.fixture
def files(tmp_path):
    """A folder of a random model with a softmax and a vocabulary with special words in an unusual order."""
    return write_softmax_model(tmp_path / "model", tiny(lstm__dim=12))


@pytest.fixture
def head(files):
    return head_of(files)


def by_hand(files, sentence):
    """float64 log-probabilities over the vocabulary at every position and boundary: forward, backward [n + 2, V]."""
    options = Options.from_file(files / "options.json")
    layers, = PlainElmo(options, read_weights(files / "weights.hdf5", options)).batch([sentence])
    softmax = read_softmax(files / "softmax.hdf5", 4)
    w, b = (value.astype(np.float64) for value in softmax.values())
    for half in np.split(layers[-1].numpy(), 2, axis=1):
        scores = half @ w.T + b
        yield scores - np.log(np.exp(scores).sum(1, keepdims=True))


def assert_close(actual, expected, atol):
    for name in ("forward", "backward", "begin", "end"):
        np.testing.assert_allclose(getattr(actual, name), getattr(expected, name), atol=atol)


def test_scores_are_log_probabilities_of_each_direction(files, head):
    for score, sentence in zip(head.score(SENTENCES), SENTENCES, strict=True):
        forward, backward = by_hand(files, sentence)
        ids = [WORDS.index(word if word in WORDS else "<UNK>") for word in ("<S>", *sentence, "</S>")]
        at = np.arange(len(sentence))
        expected = SentenceScore(forward[at, ids[1:-1]], backward[at + 2, ids[1:-1]], forward[-2, ids[-1]],
                                 backward[1, ids[0]])
        assert_close(score, expected, 1e-5)
        assert score.forward_total == pytest.approx(score.forward.sum() + score.end, abs=1e-5)


def test_scores_sum_to_the_trainers_loss(files, head, tmp_path):
    sentences = [sentence for sentence in SENTENCES if len(sentence) > 5][:1] * 3 + ["the dog sat on the cat .".split()]
    (tmp_path / "text.txt").write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf-8")
    evaluation = perplexity_of(files, str(tmp_path / "text.txt"), batch_size=4)
    scores = head.score(sentences)
    count = sum(len(sentence) + 1 for sentence in sentences)
    losses = [-sum(getattr(score, f"{way}_total") for score in scores) / count for way in ("forward", "backward")]
    assert losses == pytest.approx([math.log(perplexity) for perplexity in evaluation.by_direction], rel=1e-4)


def words(places):
    return [[substitute.word for substitute in place] for place in places]


@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
def test_substitutes_are_ranked_without_special_words(files, head, direction):
    sentence = SENTENCES[3]
    forward, backward = by_hand(files, sentence)
    allowed = [WORDS.index(word) for word in WORDS if word not in ("<S>", "</S>", "<UNK>")]
    for position, substitutes in enumerate(head.substitutes_at(sentence, range(len(sentence)), 100, direction)):
        values = {"forward": forward[position], "backward": backward[position + 2],
                  "both": forward[position] + backward[position + 2]}[direction][allowed]
        values = values - np.log(np.exp(values).sum())
        order = np.argsort(-values)
        assert [item.word for item in substitutes] == [WORDS[allowed[at]] for at in order]
        assert [WORDS[item.id] for item in substitutes] == [item.word for item in substitutes]
        np.testing.assert_allclose([item.log_probability for item in substitutes], values[order], atol=1e-4)
        assert substitutes[:3] == head.substitutes(sentence, position, 3, direction)


def test_substitutes_do_not_depend_on_the_token(head):
    first, second = (head.substitutes(f"the {word} sat on the mat .".split(), 1) for word in ("cat", "12345"))
    assert words([first]) == words([second])


def test_no_sentences_have_no_scores(head):
    assert head.score([]) == [] and head.substitutes_at([], []) == []


@pytest.mark.parametrize("call, error, message", [
    (lambda head, _: head.score("a string"), ValueError, "sentences"),
    (lambda head, _: head.substitutes(["the"], 1), ValueError, "positions: expected 0 to 0"),
    (lambda head, _: head.substitutes(["the"], 0, k=0), ValueError, "k: expected"),
    (lambda head, _: head.substitutes(["the"], 0, direction="up"), ValueError, "direction: expected"),
    (lambda head, files: SoftmaxHead.from_files(head.bilm, files / "softmax.hdf5", files / "short.txt"),
     ConfigurationError, "expected the 12 words of the softmax, got 11"),
    (lambda head, files: SoftmaxHead.from_files(head.bilm, files / "softmax.hdf5", files / "no_unk.txt"), ValueError,
     "missing <UNK>"),
    (lambda head, files: read_softmax(files / "softmax.hdf5", 5), ConfigurationError, "expected W"),
    (lambda head, files: read_softmax(files / "options.json", 4), ConfigurationError, "something else"),
    (lambda head, files: read_softmax(files / "nothing", 4), FileNotFoundError, "found nothing"),
])
def test_refuses(head, files, call, error, message):
    (files / "short.txt").write_text("\n".join(WORDS[:-1]), encoding="utf-8")
    (files / "no_unk.txt").write_text("\n".join(WORDS).replace("<UNK>", "unk"), encoding="utf-8")
    with pytest.raises(error, match=message):
        call(head, files)
