"""Every way in gives the numbers that TensorFlow wrote, and those of the plain model in float64."""

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
from elmo_fast.model.layers.batch_layout import remove_boundaries
from elmo_fast.model.options import Options
from elmo_fast.testing import AGAINST_TENSORFLOW
from tests.support import models, plain
from tests.support.files import paths, read_hdf5

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
    """30 sentences in three streams; the files that bilm-tf ships have their top layers too."""
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


def by_hand(folder, of):
    """9 sentences, one of them empty, tokens longer than a model reads, and letters of several bytes."""
    models.files(folder, of)
    weights, states = models.weights(of), [None] * 3
    sentences = [[word for word in sentence if word] for sentence in models.SENTENCES]
    case = Case(folder, [(sentences[start : start + 3], []) for start in (0, 3, 1)])
    for ids, (batch, expected) in zip(case.ids(bounded=True), case.batches):
        for row, words in enumerate(batch):
            layers, states[row] = plain.layers(ids[row, : len(words) + 2].numpy(), weights, of, states[row])
            expected.append(layers[:, 1:-1])
    return case


@pytest.fixture(scope="module", params=["allennlp", "bilm-tf", "short tokens"])
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    if request.param in SENTENCES:
        return by_tensorflow(folder, request.getfixturevalue("shared") / "fixtures" / request.param)
    return by_hand(folder, models.SHAPES[request.param])


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.abs(np.asarray(found) - expected).max(initial=0) < AGAINST_TENSORFLOW


def cut(padded, batch):
    """Vectors [B, layers, T, 2 P] without what is past a sentence's end, which is zero."""
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


def picked(case, call, **arguments):
    """Each layer by a mixture of its own."""
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


def loaded(case, **arguments):
    return elmo_fast.load(case.folder, **arguments).embed(case.sentences, state="carry", batch_size=3)


def command(case, backend):
    text = case.write("text.txt", map(" ".join, case.sentences))
    assert main(["embed", str(text), str(case.folder / "out"), "--all", "--options-file", case.files[0],
                 "--weight-file", case.files[1], "--batch-size", "3", "--backend", backend, "--allow-blank"]) == 0
    return numbered(case.folder / "out")


def numbered(path):
    found = read_hdf5(path)
    return [found[str(number)] for number in range(len(found) - ("sentence_to_index" in found))]


def tabled(case, words, **arguments):
    """With a token table of every word, or of so few that most are encoded."""
    bilm = BiLm.from_files(*case.files, **arguments)
    bilm.token_table = build_token_table(bilm, words or corpus_words(case.sentences))
    for batch, _ in case.batches:
        yield from ElmoEmbedder.from_bilm(bilm).embed_batch(batch)


def bilm_tfs(case, by_words, **arguments):
    """bilm-tf's class on character ids, or on word ids and the vectors of a dump."""
    if by_words:
        vocabulary, table = case.write("vocab.txt", corpus_words(case.sentences)), case.folder / "dumped"
        bilm_tf.dump_token_embeddings(vocabulary, *case.files, table, progress=False)
        arguments |= {"use_character_inputs": False, "embedding_weight_file": table}
    model = bilm_tf.BidirectionalLanguageModel(*case.files, **arguments)
    for ids, (batch, _) in zip(case.ids(bounded=True), case.batches):
        ops = model(bilm_tf.TokenBatcher(vocabulary).batch_sentences(batch) if by_words else ids)
        assert ops["lengths"].tolist() == ops["mask"].sum(1).tolist() == [len(words) for words in batch]
        yield from cut(ops["lm_embeddings"], batch)


def dumped(case, **arguments):
    vocabulary, text = case.write("vocab.txt", ["<S>", "</S>"]), case.write("text.txt", map(" ".join, case.sentences))
    bilm_tf.dump_bilm_embeddings(vocabulary, text, *case.files, case.folder / "out", batch_size=3, progress=False,
                                 **arguments)
    return numbered(case.folder / "out")


def simple(case, **arguments):
    model = ElmoModel(state="carry", **arguments)
    model.load(case.folder, max_batch_size=3)
    return cut(model.get_elmo_vectors(case.sentences, warmup=False, layers="all"), case.sentences)


CORE = {"BiLm": layers, "Elmo": partial(picked, call=Elmo), "batches": batches, "stream": stream}
WAYS = {
    **CORE, "boundaries present": partial(layers, bounded=True), "load": loaded,
    "command": command, "table": partial(tabled, words=None), "small table": partial(tabled, words=["the"]),
    "allennlp.Elmo": partial(picked, call=allennlp.Elmo),
    "allennlp._ElmoBiLm": partial(layers, call=allennlp._ElmoBiLm),
    "allennlp.ElmoEmbedder, batches": partial(batches, call=allennlp.ElmoEmbedder),
    "allennlp.ElmoEmbedder, rectangles": partial(rectangles, call=allennlp.ElmoEmbedder),
    "bilm-tf": partial(bilm_tfs, by_words=False), "bilm-tf, words": partial(bilm_tfs, by_words=True),
    "bilm-tf, dump": dumped, "simple_elmo": simple}


@pytest.mark.parametrize("way, backend", [
    *((way, "auto") for way in WAYS), *((way, "torch") for way in CORE), ("BiLm", "reference"),
    *(pytest.param(way, "reference", marks=pytest.mark.long) for way in CORE if way != "BiLm")])
def test_every_way_in(case, way, backend):
    found = WAYS[way](case, backend=backend)
    expected = itertools.chain.from_iterable(layers for _, layers in case.batches)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("case", ["allennlp"], indirect=True)
def test_the_token_embeddings_that_bilm_tf_wrote(case, shared):
    folder = shared / "fixtures" / "allennlp"
    embeddings, vocabulary = (folder / name for name in ("elmo_token_embeddings.hdf5", "vocab_test.txt"))
    theirs = TokenTable.open(embeddings, vocabulary)
    vectors = theirs.vectors(np.arange(len(theirs)))
    bilm_tf.dump_token_embeddings(vocabulary, *case.files, case.folder / "dumped", progress=False)
    assert_close(read_hdf5(case.folder / "dumped")["embedding"], vectors.numpy())
    for backend in BACKENDS:
        bilm = BiLm.from_files(*case.files, token_table=theirs, backend=backend)
        ours = build_token_table(bilm, vocabulary)
        assert theirs.words == ours.words and theirs.fingerprint is None
        assert_close(ours.vectors(np.arange(len(ours))), vectors.numpy())
    bilm = BiLm.from_files(*case.files, token_table=embeddings)
    ids = torch.from_numpy(theirs.ids(["<S>", *theirs.words[5:9], "</S>"]))[None]
    plain = BiLm.from_files(*case.files)(batch_to_ids([theirs.words[5:9]]))
    for found, one in zip(bilm(ids, boundaries="present").activations, plain.activations):
        assert_close(found.detach(), one.detach().numpy())
