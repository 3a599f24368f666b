"""Initial states of the drop-ins' calls (docs/migrating.md, "States, call by call"), as in the plain float64 model."""

import io

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import batch_to_ids
from elmo_fast.compat import allennlp, bilm
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.testing import AGAINST_FLOAT64
from elmo_fast.text.batching import groups_of
from tests.support import models
from tests.support.files import read_hdf5, tiny
from tests.support.plain_elmo import PlainElmo

OPTIONS = elmo_fast.Options.from_dict(tiny(lstm__dim=12, lstm__cell_clip=0.3, lstm__proj_clip=0.05))
CALLS = [[["the", "sea"], ["grey", "and", "old", "salt"], []],
         [["wind"], ["the", "grey", "wind", "of", "the", "sea"], [], ["salt"], ["naïve", "café"]],
         [["of"], ["the", "x" * 60]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    models.files(folder, OPTIONS)
    return folder


@pytest.fixture
def files(folder):
    return [str(folder / name) for name in ("options.json", "weights.hdf5")]


@pytest.fixture
def exact():
    """The plain model; both of its clips fire."""
    model = PlainElmo(OPTIONS, models.weights(OPTIONS))
    yield model
    assert model.counts.cell > 0 and model.counts.projection > 0


def inner(layers):
    """Layers of each sentence without its boundaries, [layers, T, 2 P]."""
    return [values[:, 1:-1].numpy() for values in layers]


def in_batches(exact, sentences, size, runs_empty=True):
    """Batches of `size`, each row from the end of the last call. AllenNLP skips a single empty sentence."""
    return [values for batch in groups_of(sentences, size) for values in (
        inner(exact.batch(batch)) if runs_empty or batch != [[]] else [np.zeros((3, 0, 8))])]


def check(actual, expected):
    """Compare sentences' vectors [..., T, 2 P], of which `actual` may have more positions: zeros."""
    actual = [values.detach().numpy() if isinstance(values, torch.Tensor) else values for values in actual]
    for values, truth in zip(actual, expected, strict=True):
        length = truth.shape[-2]
        error = np.linalg.norm(values[..., :length, :] - truth)
        assert error <= AGAINST_FLOAT64["ieee"] * np.linalg.norm(truth) and not values[..., length:, :].any()


# ---- AllenNLP ----


def top_mixture(files):
    """An `Elmo` whose mixture is the top layer, as a function of ids."""
    elmo = allennlp.Elmo(*files, 1, dropout=0, scalar_mix_parameters=[-9e10, -9e10, 1])
    return lambda ids: elmo(ids)["elmo_representations"][0]


def top_token_embedder(files):
    return allennlp.ElmoTokenEmbedder(*files, dropout=0, scalar_mix_parameters=[-9e10, -9e10, 1])


def top_of_bilm(files):
    model = allennlp._ElmoBiLm(*files)

    def call(ids):
        output = model(ids)
        return allennlp.remove_sentence_boundaries(output["activations"][2], output["mask"])[0]

    return call


@pytest.mark.parametrize("make", [top_mixture, top_token_embedder, top_of_bilm])
def test_modules_begin_row_by_row_where_the_last_call_ended(files, exact, make):
    call = make(files)
    for batch in CALLS:
        check(call(batch_to_ids(batch)), [values[2] for values in inner(exact.batch(batch))])


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_calls_of_an_embedder_share_its_states(files, exact, backend, tmp_path):
    """A single empty sentence leaves the states alone; `embed_sentences` and `embed_file` run batches, which count if
    their results were requested."""
    embedder = allennlp.ElmoEmbedder(*files, backend=backend)
    for batch in CALLS:
        check(embedder.embed_batch(batch), inner(exact.batch(batch)))
        check([embedder.embed_sentence(batch[1])], inner(exact.batch(batch[1:2])))
        assert embedder.embed_sentence([]).shape == (3, 0, 8)
        for size in (2, 3):
            check(list(embedder.embed_sentences(batch, size)), in_batches(exact, batch, size, runs_empty=False))
        check([next(embedder.embed_sentences(batch, 2))], inner(exact.batch(batch[:2]))[:1])
        check(embedder.batch_to_embeddings(batch)[0], inner(exact.batch(batch)))
        lines = [sentence for sentence in batch if sentence]
        embedder.embed_file(io.StringIO("\n".join(map(" ".join, lines))), tmp_path / f"{len(batch)}.hdf5",
                            batch_size=2, forget_sentences=True, progress=False)
        arrays = read_hdf5(tmp_path / f"{len(batch)}.hdf5")
        check([arrays[str(number)] for number in range(len(lines))], in_batches(exact, lines, 2))


# ---- bilm-tf ----


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("<S>\n</S>\n<UNK>\n")
    return path


@pytest.mark.parametrize("mixing", [{"use_top_only": True}, {}, {"do_layer_norm": True}])
def test_each_stream_begins_where_its_last_call_ended(files, vocab, mixing):
    batcher, model = bilm.Batcher(vocab, 50), bilm.BidirectionalLanguageModel(*files)
    exact = {name: PlainElmo(OPTIONS, models.weights(OPTIONS)) for name in ("context", "question")}
    for number, name in ((0, "context"), (1, "question"), (1, "context"), (2, "question"), (2, "context")):
        ops, expected = model(batcher.batch_sentences(CALLS[number]), name), inner(exact[name].batch(CALLS[number]))
        check(ops["lm_embeddings"], expected)
        mixed = bilm.weight_layers("elmo", ops, l2_coef=0, reuse=number > 0, **mixing)["weighted_op"]
        if "do_layer_norm" in mixing:  # without `<S>` and `</S>`
            layers = [np.concatenate(layer) for layer in zip(*expected)]
            expected = [[(values - layer.mean()) / np.sqrt(layer.var() + 1e-12)
                         for values, layer in zip(sentence, layers)] for sentence in expected]
            mixed = mixed * ops["mask"][..., None]
        check(mixed, [values[2] if "use_top_only" in mixing else np.mean(values, axis=0) for values in expected])


# ---- simple_elmo, SeqVec, load ----


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("in_session", [True, False])
def test_calls_of_simple_elmo(folder, exact, in_session, warmup):
    """A call begins from zeros, or where the last call of its session ended, and runs its first batch twice."""
    model, sessions = ElmoModel(), [object(), object()]
    model.load(folder, max_batch_size=2)
    rows = [[], []]
    for number, batch in ((0, CALLS[0]), (1, CALLS[1]), (0, CALLS[1]), (0, CALLS[2]), (1, CALLS[0])):
        exact.rows = rows[number] if in_session else []
        if warmup:
            exact.batch(batch[:2])
        expected = in_batches(exact, batch, 2)
        rows[number] = exact.rows
        session = sessions[number] if in_session else None
        check(model.get_elmo_vectors(batch, warmup=warmup, layers="all", session=session), expected)


def test_carried_calls_of_a_loaded_model(folder, exact):
    """`embed` and `stream` begin where the last carried call ended; calls with another `state` do not count."""
    model = elmo_fast.load(folder, device="cpu")
    for batch in CALLS:
        check(model.embed(batch, state="carry", batch_size=2), in_batches(exact, batch, 2, runs_empty=False))
        model.embed(batch), model.embed(batch, state="zero")
        check(list(model.stream(batch, state="carry", batch_size=3)), in_batches(exact, batch, 3, runs_empty=False))
