"""Every API gives the numbers that TensorFlow wrote and those of the plain float64 model."""

import itertools
import json
import shutil
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import BiLm, Elmo, ElmoEmbedder, TokenTable, batch_to_ids, build_token_table, corpus_words
from elmo_fast.cli import main
from elmo_fast.compat import allennlp
from elmo_fast.compat import bilm as bilm_tf
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.nn.layers.batch_layout import remove_boundaries
from elmo_fast.testing import AGAINST_TENSORFLOW
from elmo_fast.weights.options import Options
from tests.support import models
from tests.support.files import paths, read_hdf5
from tests.support.plain_elmo import PlainElmo

SENTENCES = {"allennlp": "sentences.json", "bilm-tf": "lm_embeddings_sentences.json"}
BACKENDS = ["reference", "torch", "auto"]


class Case(NamedTuple):
    """A model's folder, and stateful batches of three sentences with their layers [3, tokens, 2 P]."""

    folder: object
    batches: list

    @property
    def files(self):
        return tuple(map(str, paths(self.folder)))

    @property
    def sentences(self):
        return list(itertools.chain.from_iterable(batch for batch, _ in self.batches))

    def ids(self, bounded=False):
        """Character ids of each batch."""
        size = Options.from_file(self.files[0]).char_cnn.max_characters_per_token
        return [batch_to_ids([["<S>", *words, "</S>"] for words in batch] if bounded else batch, size)
                for batch, _ in self.batches]

    def write(self, name, lines):
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return self.folder / name


def by_tensorflow(folder, source):
    """30 sentences in three streams; bilm-tf's files have their top layers too."""
    shutil.copy(source / "options.json", folder)
    shutil.copy(source / "lm_weights.hdf5", folder / "weights.hdf5")
    streams = json.loads((source / SENTENCES[source.name]).read_text(encoding="utf-8"))
    shipped = [read_hdf5(source / f"lm_embeddings_{stream}.hdf5") for stream in range(3)]
    with np.load(source.parent / "all_layers.npz") as stored:
        batches = [([stream[k].split() for stream in streams],
                    [stored[f"{source.name}/{k}/{stream}"] for stream in range(3)]) for k in range(10)]
    for k, (_, expected) in enumerate(batches):
        for layers, tops in zip(expected, shipped):
            assert_close(layers[-1], np.concatenate(list(tops[str(k)]), axis=-1))
    return Case(folder, batches)


def by_hand(folder, sizes):
    """9 sentences, one of them empty, with tokens longer than the model reads and letters of several bytes."""
    models.files(folder, sizes)
    sentences = [[word for word in sentence if word] for sentence in models.SENTENCES]
    batches, model = [sentences[start : start + 3] for start in (0, 3, 1)], PlainElmo(sizes, models.weights(sizes))
    return Case(folder, [(batch, [layers[:, 1:-1].numpy() for layers in model.batch(batch)]) for batch in batches])


@pytest.fixture(scope="module", params=["allennlp", "bilm-tf", "short tokens"])
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    if request.param in SENTENCES:
        return by_tensorflow(folder, request.getfixturevalue("shared") / "fixtures" / request.param)
    return by_hand(folder, models.SHAPES[request.param])


def assert_close(actual, expected):
    assert actual.shape == expected.shape
    assert np.abs(np.asarray(actual) - expected).max(initial=0) < AGAINST_TENSORFLOW


def cut(padded, batch):
    """Vectors [B, layers, T, 2 P] without the padding, which must be zero."""
    for values, words in zip(torch.as_tensor(padded).detach(), batch, strict=True):
        assert not values[:, len(words) :].any()
        yield values[:, : len(words)]


def layers(case, call=BiLm.from_files, bounded=False, **arguments):
    model = call(*case.files, **arguments)
    for ids, (batch, _) in zip(case.ids(bounded), case.batches):
        output = model(ids, "present") if bounded else model(ids)
        mask = output["mask"] > 0
        assert mask.sum(1).tolist() == [len(words) + 2 for words in batch]
        assert not any(layer[~mask].any() for layer in output["activations"])
        yield from cut(torch.stack([remove_boundaries(layer, mask)[0] for layer in output["activations"]], 1), batch)


def mixed_layers(case, call, **arguments):
    """Every layer from a mixture that selects it."""
    modules = [call(*case.files, 1, dropout=0, scalar_mix_parameters=np.where(np.arange(3) == layer, 1, -9e10).tolist(),
                    **arguments) for layer in range(3)]
    for ids, (batch, _) in zip(case.ids(), case.batches):
        outputs = [module(ids) for module in modules]
        assert outputs[0]["mask"].sum(1).tolist() == [len(words) for words in batch]
        yield from cut(torch.stack([output["elmo_representations"][0] for output in outputs], 1), batch)


def batches(case, call=ElmoEmbedder, **arguments):
    embedder = call(*case.files, **arguments)
    return itertools.chain.from_iterable(embedder.embed_batch(batch) for batch, _ in case.batches)


def stream(case, call=ElmoEmbedder, **arguments):
    return call(*case.files, **arguments).embed_sentences(iter(case.sentences), 3)


def rectangles(case, call, **arguments):
    embedder = call(*case.files, **arguments)
    for batch, _ in case.batches:
        vectors, mask = embedder.batch_to_embeddings(batch)
        assert mask.sum(1).tolist() == [len(words) for words in batch] and mask.dtype == torch.int64
        yield from cut(vectors, batch)


def with_load(case, **arguments):
    return elmo_fast.load(case.folder, **arguments).embed(case.sentences, state="carry", batch_size=3)


def command(case, backend):
    text = case.write("text.txt", map(" ".join, case.sentences))
    assert main(["embed", str(text), str(case.folder / "out"), "--all", "--options-file", case.files[0],
                 "--weight-file", case.files[1], "--batch-size", "3", "--backend", backend, "--allow-blank"]) == 0
    return numbered(case.folder / "out")


def numbered(path):
    arrays = read_hdf5(path)
    return [arrays[str(number)] for number in range(len(arrays) - ("sentence_to_index" in arrays))]


def with_table(case, words, **arguments):
    """Vectors with a token table of all words or of a few."""
    bilm = BiLm.from_files(*case.files, **arguments)
    bilm.token_table = build_token_table(bilm, words or corpus_words(case.sentences))
    for batch, _ in case.batches:
        yield from ElmoEmbedder.from_bilm(bilm).embed_batch(batch)


def with_bilm_tf(case, by_words, **arguments):
    """bilm-tf's class with character ids, or with word ids and dumped vectors."""
    if by_words:
        vocabulary, table = case.write("vocab.txt", corpus_words(case.sentences)), case.folder / "dumped"
        bilm_tf.dump_token_embeddings(vocabulary, *case.files, table, progress=False)
        arguments |= {"use_character_inputs": False, "embedding_weight_file": table}
    model = bilm_tf.BidirectionalLanguageModel(*case.files, **arguments)
    for ids, (batch, _) in zip(case.ids(bounded=True), case.batches):
        ops = model(bilm_tf.TokenBatcher(vocabulary).batch_sentences(batch) if by_words else ids)
        assert ops["lengths"].tolist() == ops["mask"].sum(1).tolist() == [len(words) for words in batch]
        yield from cut(ops["lm_embeddings"], batch)


def with_dump(case, **arguments):
    vocabulary, text = case.write("vocab.txt", ["<S>", "</S>"]), case.write("text.txt", map(" ".join, case.sentences))
    bilm_tf.dump_bilm_embeddings(vocabulary, text, *case.files, case.folder / "out", batch_size=3, progress=False,
                                 **arguments)
    return numbered(case.folder / "out")


def with_simple_elmo(case, **arguments):
    model = ElmoModel(state="carry", **arguments)
    model.load(case.folder, max_batch_size=3)
    return cut(model.get_elmo_vectors(case.sentences, warmup=False, layers="all"), case.sentences)


CORE = {"BiLm": layers, "Elmo": partial(mixed_layers, call=Elmo), "batches": batches, "stream": stream}
WAYS = {
    **CORE, "boundaries present": partial(layers, bounded=True), "load": with_load,
    "command": command, "table": partial(with_table, words=None), "small table": partial(with_table, words=["the"]),
    "allennlp.Elmo": partial(mixed_layers, call=allennlp.Elmo),
    "allennlp._ElmoBiLm": partial(layers, call=allennlp._ElmoBiLm),
    "allennlp.ElmoEmbedder, batches": partial(batches, call=allennlp.ElmoEmbedder),
    "allennlp.ElmoEmbedder, rectangles": partial(rectangles, call=allennlp.ElmoEmbedder),
    "bilm-tf": partial(with_bilm_tf, by_words=False), "bilm-tf, words": partial(with_bilm_tf, by_words=True),
    "bilm-tf, dump": with_dump, "simple_elmo": with_simple_elmo}


@pytest.mark.parametrize("way, backend", [
    *((way, "auto") for way in WAYS), *((way, "torch") for way in CORE), ("BiLm", "reference"),
    *(pytest.param(way, "reference", marks=pytest.mark.long) for way in CORE if way != "BiLm")])
def test_every_api(case, way, backend):
    actual = WAYS[way](case, backend=backend)
    expected = itertools.chain.from_iterable(layers for _, layers in case.batches)
    for vectors, expected_vectors in zip(actual, expected, strict=True):
        assert_close(vectors, expected_vectors)


@pytest.mark.parametrize("case", ["allennlp"], indirect=True)
def test_the_token_embeddings_that_bilm_tf_wrote(case, shared):
    folder = shared / "fixtures" / "allennlp"
    embeddings, vocabulary = (folder / name for name in ("elmo_token_embeddings.hdf5", "vocab_test.txt"))
    stored = TokenTable.open(embeddings, vocabulary)
    vectors = stored.vectors(np.arange(len(stored)))
    bilm_tf.dump_token_embeddings(vocabulary, *case.files, case.folder / "dumped", progress=False)
    assert_close(read_hdf5(case.folder / "dumped")["embedding"], vectors)
    for backend in BACKENDS:
        bilm = BiLm.from_files(*case.files, token_table=stored, backend=backend)
        built = build_token_table(bilm, vocabulary)
        assert stored.words == built.words and stored.fingerprint is None
        assert_close(built.vectors(np.arange(len(built))), vectors)
    bilm = BiLm.from_files(*case.files, token_table=embeddings)
    ids = torch.from_numpy(stored.ids(["<S>", *stored.words[5:9], "</S>"]))[None]
    plain = BiLm.from_files(*case.files)(batch_to_ids([stored.words[5:9]]))
    for layer, expected_layer in zip(bilm(ids, boundaries="present").activations, plain.activations):
        assert_close(layer.detach(), expected_layer.detach().numpy())
