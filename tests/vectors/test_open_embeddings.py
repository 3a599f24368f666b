import json
import pickle

import h5py
import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError, FastaRecord, TokenTable, open_embeddings
from elmo_fast.compat.elmo_embedder import ElmoEmbedder
from elmo_fast.vectors.layouts.text_vectors import TextVectors
from elmo_fast.vectors.spec import OutputSpec
from tests.support.files import flip, tiny, write_model
from tests.support.vectors import FORMS, STORES_TEXTS, holds, items_of, kinds, make_items, write

TEXTS = ["The cat sat on the mat .", "", "naïve café 東京", "One", "a b c d a"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return elmo_fast.load(write_model(tmp_path_factory.mktemp("model"), tiny(lstm__dim=12)))


@pytest.mark.parametrize("cuts", [[], [0, 2, 2, 4]])
@pytest.mark.parametrize("layout, name", kinds())
def test_every_layout_gives_the_bits_of_embed(model, tmp_path, layout, name, cuts):
    for number, form in enumerate(form for form in FORMS if holds(layout, form) and not form.targets):
        texts = [text for text in TEXTS if text] if form.pool else TEXTS
        items = items_of(model, form, texts)
        (tmp_path / str(number)).mkdir()
        path = write(layout, tmp_path / str(number) / name, form, items, cuts[: len(texts) - 1], fingerprint={"a": 1})
        expected = model.embed(texts, form.layers, pool=form.pool)
        with open_embeddings(path) as reader:
            assert len(reader) == len(texts) and reader.layout == layout and reader.dtype == form.dtype
            for actual, exact in zip(reader, expected, strict=True):
                assert actual.tobytes() == exact.astype(form.dtype).tobytes() and actual.shape == exact.shape
            assert reader.keys == [str(number) for number in range(len(texts))]
            assert (reader.by_key("2") == expected[2].astype(form.dtype)).all()
            if layout not in ("npz", "npy"):
                assert reader.pool == form.pool and reader.fingerprint == {"a": 1}
                assert reader.layers == (form.layers if isinstance(form.layers, str) else list(form.layers))
                assert [reader.text(number) for number in range(len(texts))] == texts
                assert [reader.tokens(number) for number in range(len(texts))] == [text.split() for text in texts]


@pytest.mark.parametrize("layout, name", kinds(without=["out.npy"]))
@pytest.mark.parametrize("layers", ["all", "average"])
def test_targets_and_occurrences(tmp_path, layout, name, layers):
    form, full = OutputSpec(layers, targets={"wörd1", "wörd3"}), OutputSpec(layers)
    items, full_items = make_items(form), make_items(full)
    path = write(layout, tmp_path / name, form, items, [10])
    expected = [(number, position) for number, item in enumerate(items) for position, token in enumerate(item.tokens)
                if token == "wörd3"]
    vectors = np.stack([full_items[number].vectors[..., position, :] for number, position in expected])
    reader = open_embeddings(path)
    if layout == "npz":  # one array per word
        assert sorted(reader.keys) == ["wörd1", "wörd3"] and (reader.by_key("wörd3") == vectors).all()
        return
    for number, item in enumerate(items):
        assert (reader[number] == item.vectors).all() and reader[number].shape == item.vectors.shape
        assert reader.positions(number).tolist() == item.positions.tolist()
    if layout in STORES_TEXTS:
        occurring, places = reader.occurrences("wörd3")
        assert places == expected and occurring.tobytes() == vectors.tobytes()
        assert reader.occurrences("wörd0")[0].shape == (0, *vectors.shape[1:]) and reader.occurrences("wörd0")[1] == []
        whole = open_embeddings(write(layout, tmp_path / f"b{name}", full, full_items))
        assert whole.positions(0) is None and whole.occurrences("wörd3")[1] == expected
        assert whole.occurrences("wörd3")[0].tobytes() == vectors.tobytes()


@pytest.mark.parametrize("layout, name", kinds())
def test_embeddings_are_a_sequence(tmp_path, layout, name):
    form = OutputSpec("top", "mean")
    items = make_items(form, 7, keys="id {}".format)
    reader = open_embeddings(write(layout, tmp_path / name, form, items, [3]))
    assert sorted(reader.keys) == sorted(item.key for item in items)
    for embeddings in (reader, pickle.loads(pickle.dumps(reader))):
        for item in items:
            assert (embeddings.by_key(item.key) == item.vectors).all()
        assert (embeddings[-1] == embeddings[6]).all() and [vectors.tolist() for vectors in embeddings[1:6:2]] == [
            embeddings[number].tolist() for number in (1, 3, 5)]
        for index in (7, -8):
            with pytest.raises(IndexError):
                embeddings[index]
        with pytest.raises(KeyError):
            embeddings.by_key("id 7")
    assert name in repr(reader) and reader[0].flags.writeable
    reader.close()
    if (tmp_path / name).is_file():  # a directory opens its files again
        with pytest.raises(ConfigurationError, match="expected an open file, got one that was closed"):
            reader[0]


@pytest.mark.parametrize("layout, name", kinds())
def test_only_empty_texts_and_no_texts(tmp_path, layout, name):
    if layout != "npy":
        items = [TextVectors("0", "", [], None, np.empty((3, 0, 8), np.float32))]
        reader = open_embeddings(write(layout, tmp_path / name, OutputSpec(), items))
        assert reader[0].shape == (3, 0, 8) and len(reader) == 1
    reader = open_embeddings(write(layout, tmp_path / f"b{name}", OutputSpec("top", "mean"), []))
    assert len(reader) == 0 and list(reader) == reader.keys == []


def read_all(path):
    with open_embeddings(path) as reader:
        return [(reader.keys[number], reader.text(number), reader.tokens(number), reader.positions(number), vectors)
                for number, vectors in enumerate(reader)]


@pytest.mark.parametrize("layout, name", kinds())
def test_a_file_cut_short_is_refused(tmp_path, layout, name):
    form = OutputSpec("top", "mean") if layout == "npy" else OutputSpec()
    path = write(layout, tmp_path / name, form, make_items(form, 200), [20])
    file = min(path.iterdir()) if path.is_dir() else path
    content = file.read_bytes()
    for size in (0, 3, 100, len(content) // 2, len(content) - 20):
        file.write_bytes(content[:size])
        with pytest.raises(ConfigurationError, match="^embeddings .*: expected"), open_embeddings(path) as reader:
            list(reader)


@pytest.mark.parametrize("layout, name", kinds(("parquet", "o.parquet")))
def test_pages_of_parquet_have_checksums(tmp_path, layout, name):
    path = write(layout, tmp_path / name, OutputSpec(), make_items(OutputSpec(), 60))
    flip(path, path.read_bytes().index(make_items(OutputSpec(), 60)[30].vectors[:, 0].tobytes()[:16]))
    with pytest.raises(ConfigurationError, match="^embeddings .*: expected a file of columns"):
        read_all(path)


@pytest.mark.parametrize("layout, name", kinds(("parquet", "o"), ("arrow", "o")))
def test_other_files_in_a_directory_of_parts(tmp_path, layout, name):
    """Files of other programs are skipped, parts of another form are refused."""
    form, suffix = OutputSpec("top"), f".{layout}"
    path = write(layout, tmp_path / name, form, make_items(form, 90), range(1, 90))
    for name in ("_manifest.json", f"_{suffix}", f".hidden{suffix}", "README"):
        (path / name).write_text("{}")
    with open_embeddings(path) as reader:
        assert len(reader) == 90 and reader.keys == [str(number) for number in range(90)]
        assert [vectors.tobytes() for vectors in reader] == [item.vectors.tobytes() for item in make_items(form, 90)]
    write(layout, tmp_path / f"other{suffix}", OutputSpec("average"), make_items(OutputSpec("average"))).rename(
        path / f"99999{suffix}")
    with pytest.raises(ConfigurationError, match="99999.*: expected .* as in the first file of its directory, found"):
        open_embeddings(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="expected a directory of files that end in .parquet, .arrow"):
        open_embeddings(tmp_path / "empty")


def test_files_of_the_embedder_and_of_allennlp(model, tmp_path):
    embedder, expected = ElmoEmbedder.from_bilm(model.bilm), model.embed(TEXTS)
    for number, keys in enumerate((False, True)):
        texts = TEXTS if not keys else [text for text in TEXTS if text]
        (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        with open(tmp_path / "t.txt", encoding="utf-8") as file:
            embedder.embed_file(file, tmp_path / f"{number}.hdf5", use_sentence_keys=keys, allow_blank=True)
        with open_embeddings(tmp_path / f"{number}.hdf5") as reader:
            assert sorted(reader.keys) == sorted(texts if keys else map(str, range(len(TEXTS))))
            for text, vectors in zip(texts, [w for w, t in zip(expected, TEXTS) if t in texts]):
                key = text if keys else str(texts.index(text))
                assert (reader.by_key(key) == vectors).all()
            assert reader.layers == "all" and (keys or reader.text(2) == TEXTS[2])
    with h5py.File(tmp_path / "theirs.hdf5", "w") as file:  # as AllenNLP's embed_file
        for number in range(12):
            file.create_dataset(str(number), (3, 2, 8), dtype="float32", data=np.full((3, 2, 8), number))
        index = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        index[0] = json.dumps({f"text {number}": str(number) for number in range(12)})
    with open_embeddings(tmp_path / "theirs.hdf5") as reader:
        assert [int(vectors[0, 0, 0]) for vectors in reader] == list(range(12)) and len(reader) == 12
        assert reader.tokens(10) == ["text", "10"] and reader.dtype == np.float32 and reader.layers is None
    with h5py.File(tmp_path / "theirs.hdf5", "a") as file:
        file["word"] = "no vectors"
    with open_embeddings(tmp_path / "theirs.hdf5") as reader, pytest.raises(ConfigurationError, match="'word' is no"):
        reader.by_key("word")


@pytest.mark.parametrize("stored, message", [
    ("[1]", r"\[1\]"), ('{"a": "b"}', "{'a': 'b'}"), ("[", "expected JSON"), (7, "expected str")])
def test_tokens_of_allennlp_files(tmp_path, stored, message):
    """Tokens are stored where splitting the text does not give them; attributes of another kind are refused."""
    first = TextVectors("0", "It's fine.", ["It", "'s", "fine", "."], None, np.zeros((3, 4, 2), np.float32))
    second = TextVectors("1", "fine .", ["fine", "."], None, np.ones((3, 2, 2), np.float32))
    path = write("allennlp", tmp_path / "o.h5", OutputSpec(), [first, second], [1])
    with open_embeddings(path) as vectors:
        assert [vectors.tokens(number) for number in (0, 1)] == [first.tokens, second.tokens]
        assert vectors.occurrences("fine")[1] == [(0, 2), (1, 0)]
    with h5py.File(path, "a") as file:
        assert list(file["0"].attrs) == ["tokens"] and not file["1"].attrs
        file["0"].attrs["tokens"] = stored
    with open_embeddings(path) as vectors, pytest.raises(ConfigurationError, match=f"0: attribute tokens.*{message}"):
        vectors.tokens(0)


def test_files_of_seqvec(model, tmp_path):
    records = [FastaRecord("sp|P1 x", "MKTAY"), FastaRecord("Q/2", "MK")]
    expected = dict(zip(("sp|P1", "Q/2"), model.embed(records, "top", pool="mean")))
    for suffix in (".h5", ".npz", ".npy"):
        model.save_vectors(tmp_path / f"v{suffix}", records, "top", pool="mean")
        with open_embeddings(tmp_path / f"v{suffix}") as reader:
            assert sorted(reader.keys) == sorted(expected)
            assert all((reader.by_key(key) == vectors).all() for key, vectors in expected.items())
            for ask in (reader.text, reader.tokens):
                with pytest.raises(ConfigurationError, match=r"expected a file that stores (text|tokens), found none"):
                    ask(0)
            with pytest.raises(ConfigurationError, match="expected (vectors of tokens, found pooled ones|a file that "
                               "stores tokens, found none)"):
                reader.occurrences("M")
    (tmp_path / "v.json").write_text('["one"]')
    with pytest.raises(ConfigurationError, match="2 vectors with 1 names in v.json"):
        open_embeddings(tmp_path / "v.npy")


@pytest.mark.parametrize("names", [[f"sp|P{11 - number}" for number in range(12)], list(range(20, 32))])
def test_names_in_files_of_bio_embeddings(tmp_path, names):
    """bio_embeddings numbers sequences and stores the names of the FASTA file as attributes."""
    with h5py.File(tmp_path / "reduced_embeddings_file.h5", "w") as file:
        for number, name in enumerate(names):
            file.create_dataset(str(number), data=np.full(4, number, np.float32)).attrs["original_id"] = name
    with open_embeddings(tmp_path / "reduced_embeddings_file.h5") as reader:
        assert reader.keys == list(map(str, names)) and reader.positions(0) is None
        for number, name in enumerate(names):
            assert (reader.by_key(str(name)) == number).all()


def test_files_without_vectors_of_texts_are_named(tmp_path):
    TokenTable(np.ones((3, 6), np.float32), ["<S>", "</S>", "a"], "0123").save(tmp_path / "table.hdf5")
    with h5py.File(tmp_path / "bilm.hdf5", "w") as file:
        file["embedding"] = np.ones((3, 6))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.attrs["format"], file["vectors"] = "elmo-fast context index", np.zeros((3, 4), np.float32)
    write_model(tmp_path / "model")
    (tmp_path / "text").write_text("a b c\n")
    for name, error, message in (
            *((name, ConfigurationError, "found a table of token vectors .elmo-fast cache, or bilm-tf's")
              for name in ("table.hdf5", "bilm.hdf5")),
            ("other.h5", ConfigurationError, "other.h5: expected vectors of texts, found a file of the format"),
            ("model/weights.hdf5", ConfigurationError, "found the weights of a model"),
            ("text", ConfigurationError, "expected HDF5, Parquet, Arrow, .npz or .npy, found none of them"),
            ("none", FileNotFoundError, "embeddings: expected a file or directory, found nothing at")):
        with pytest.raises(error, match=message):
            open_embeddings(tmp_path / name)
    form = OutputSpec("top", "mean")
    with pytest.raises(ConfigurationError, match="expected vectors of tokens, found pooled ones"):
        open_embeddings(write("allennlp", tmp_path / "p.h5", form, make_items(form))).occurrences("a")


@pytest.mark.parametrize("layout, name", kinds(("parquet", "o.parquet"), ("arrow", "o.arrow")))
def test_files_with_other_columns_are_refused(tmp_path, layout, name):
    import pyarrow
    from pyarrow import feather, parquet

    write_table = parquet.write_table if layout == "parquet" else feather.write_feather
    write_table(pyarrow.table({"a": [1]}), tmp_path / name)
    with pytest.raises(ConfigurationError, match="wrote, found another file with the columns a"):
        open_embeddings(tmp_path / name)


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.symlink_to(path.with_name("names")),
                                  lambda path: path.symlink_to(path.name), lambda path: path.write_text('{"a": 1}')])
def test_another_file_at_the_place_of_the_names_is_refused(model, tmp_path, make):
    (tmp_path / "names").write_text('["a"]')
    make(tmp_path / "a.json")
    before = (tmp_path / "a.json").lstat()
    with pytest.raises(ConfigurationError, match=r"^output: expected nothing or the names of .*a\.npy at .*a\.json"):
        model.save_vectors(tmp_path / "a.npy", ["a"], "top", pool="mean")
    after = (tmp_path / "a.json").lstat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert (tmp_path / "names").read_text() == '["a"]' and not (tmp_path / "a.npy").exists()
