"""`low` at every entry point with a precision: the vectors of a biLM in `low`, and a refusal of gradients."""

import json

import h5py
import numpy as np
import pytest
import torch

import elmo_fast
from benchmarks.workloads import running_text
from elmo_fast import BiLm, Elmo, ElmoEmbedder, batch_to_ids
from elmo_fast.compat.allennlp.modules.elmo import _ElmoBiLm
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, dump_bilm_embeddings
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.embed.embedder import Embedder
from elmo_fast.embed.scoring import load_head
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.nn.lookup import TokenEncoder
from elmo_fast.testing import PERPLEXITY, SAME_MODEL
from tests.support.files import paths, run, tiny
from tests.support.softmax import SENTENCES, write_softmax_model

TOKENS = SENTENCES[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Large enough for every layer to differ between precisions."""
    return write_softmax_model(tmp_path_factory.mktemp("model"), tiny(lstm__dim=48, lstm__projection_dim=16))


def layers(model, precision):
    """[layers, T, 2 P] of `TOKENS` from zero states."""
    with torch.no_grad():
        activations, _ = BiLm.from_files(*paths(model), state="zero", precision=precision).embed_tokens([TOKENS])
    return np.stack([each[1:-1].numpy() for each in activations])


@pytest.fixture(scope="module")
def expected(model):
    low = layers(model, "low")
    if elmo_fast.load(model, device="cpu", precision="low").model.computes_in == "low":
        assert all(np.abs(low - layers(model, "highest")).max((1, 2)) > SAME_MODEL)
    return low


def of_bilm_tf(model, tmp_path):
    lm = BidirectionalLanguageModel(*map(str, paths(model)), state="zero", precision="low")
    ids = Batcher(str(model / "vocab.txt"), 50).batch_sentences([TOKENS])
    return lm(ids)["lm_embeddings"][0].detach().numpy()


def of_a_bilm_tf_file(model, tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(TOKENS) + "\n")
    dump_bilm_embeddings(model / "vocab.txt", tmp_path / "text.txt", *paths(model), tmp_path / "out.h5", state="zero",
                         precision="low", progress=False)
    with h5py.File(tmp_path / "out.h5") as file:
        return file["0"][()]


def of_simple_elmo(model, tmp_path):
    elmo = ElmoModel(state="zero", precision="low")
    elmo.load(model)
    return elmo.get_elmo_vectors([TOKENS], layers="all")[0]


def of_allennlps_bilm(model, tmp_path):
    lm = _ElmoBiLm(*map(str, paths(model)), state="zero", precision="low")
    return np.stack([each[0, 1:-1].numpy() for each in lm(batch_to_ids([TOKENS]))["activations"]])


def of_the_command(model, tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(TOKENS) + "\n")
    status = elmo_fast.cli.main(["embed", str(tmp_path / "text.txt"), str(tmp_path / "out.h5"), "--all", "--model",
                                 str(model), "--state", "zero", "--precision", "low", "--quiet"])
    assert status == 0
    with h5py.File(tmp_path / "out.h5") as file:
        return file["0"][()]


ENTRIES = {
    "load": lambda model, _: elmo_fast.load(model, device="cpu", precision="low").embed([TOKENS], state="zero")[0],
    "ElmoEmbedder": lambda model, _: ElmoEmbedder(*paths(model), state="zero", precision="low").embed_sentence(TOKENS),
    "simple_elmo": of_simple_elmo, "bilm-tf": of_bilm_tf, "bilm-tf's file": of_a_bilm_tf_file,
    "AllenNLP's biLM": of_allennlps_bilm, "the command": of_the_command}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_in_low_has_the_vectors_of_a_bilm_in_low(entry, model, expected, tmp_path):
    np.testing.assert_allclose(ENTRIES[entry](model, tmp_path), expected, rtol=0, atol=SAME_MODEL)


def test_elmo_in_low_trains_its_mixture_but_not_its_weights(model, expected):
    ids = batch_to_ids([TOKENS])
    elmo = Elmo(*map(str, paths(model)), 1, dropout=0, state="zero", precision="low").train()
    mixture, = elmo(ids)["elmo_representations"]
    np.testing.assert_allclose(mixture[0].detach().numpy(), expected.mean(0), rtol=0, atol=SAME_MODEL)
    mixture.sum().backward()
    assert all(each.grad is not None for each in elmo.scalar_mix_0.parameters())
    elmo = Elmo(*map(str, paths(model)), 1, requires_grad=True, state="zero", precision="low")
    for mode in (True, False):
        with pytest.raises(ValueError, match="^precision: expected one of highest, high, medium where gradients are "
                                             "recorded, got 'low'"):
            elmo.train(mode)(ids)


def test_commands_in_low_print_the_figures_of_low(model, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(" ".join(TOKENS) + "\n")
    command = [tmp_path / "text.txt", "--model", model, "--precision", "low"]
    low, highest = (load_head(model, None, None, precision=name, state="warm") for name in ("low", "highest"))
    score, = low.score([TOKENS])
    (status, out, _), exact = run(capsys, "score", *command), highest.score([TOKENS])[0].forward_total
    assert status == 0 and float(out.split("\t")[0]) == pytest.approx(score.forward_total, abs=1e-5)
    assert TokenEncoder.of(low.bilm).computes_in != "low" or abs(score.forward_total - exact) > SAME_MODEL
    status, out, _ = run(capsys, "substitutes", *command, "--top", 1)
    first = low.substitutes(TOKENS, 0, 1)[0]
    assert status == 0 and json.loads(out.splitlines()[0])["substitutes"] == [
        [first.word, pytest.approx(first.log_probability, abs=1e-5)]]


@pytest.mark.parametrize("command", ["compare ka lo", "nearest text.txt --word ka", "cache vocab.txt table.h5",
                                     "seqvec -i in.fasta -o out.npz --cpu --id 0"])
def test_a_command_makes_its_model_in_the_given_precision(command, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in (("text.txt", "ka lo\nlo ka\n"), ("in.fasta", ">a\nMK\n"), ("vocab.txt", "<S>\n</S>\nka\n")):
        (tmp_path / name).write_text(text)
    init, precisions = Embedder.__init__, []

    def recording(embedder, model, *arguments):
        init(embedder, model, *arguments)
        precisions.append(model.precision)

    monkeypatch.setattr(Embedder, "__init__", recording)
    status, _, err = run(capsys, *command.split(), "--model", model, "--precision", "low")
    assert (status, precisions) == (0, ["low"]), err


@pytest.mark.long
def test_perplexity_of_a_trained_model_in_every_precision(shared, tmp_path, capsys, monkeypatch):
    """The bundled model, fine-tuned with a softmax of the frequent words until it is far better than chance."""
    monkeypatch.chdir(tmp_path)
    lines = [" ".join(words) + "\n" for words in running_text(3200)[0]]
    (tmp_path / "train.txt").write_text("".join(lines[:3000]), encoding="utf-8")
    training = ("--max-steps 30 --batch-size 64 --full-softmax --optimizer adamw --learning-rate 0.003 "
                "--warmup-steps 5 --precision highest --quiet")
    for command in ("vocab train.txt vocab.txt --min-count 3",
                    f"train run --from-model bundled --train train.txt --vocab vocab.txt {training}",
                    "export run model --softmax"):
        assert run(capsys, *command.split())[0] == 0
    found = {name: perplexity(tmp_path / "model", [line.split() for line in lines[3000:]], name) for name in PRECISIONS}
    assert 10 < found["highest"] < 150 and found["low"] != found["highest"]
    for name, limit in PERPLEXITY.items():
        assert found[name] == pytest.approx(found["highest"], rel=limit), name


def perplexity(model, sentences, precision):
    """exp of the mean loss of all tokens in both directions, in the warm state."""
    head = load_head(model, None, None, precision=precision, state="warm")
    scores = [score for begin in range(0, len(sentences), 50) for score in head.score(sentences[begin : begin + 50])]
    losses = [-value for score in scores for value in (*score.forward, *score.backward, score.begin, score.end)]
    return np.exp(np.mean(losses))
