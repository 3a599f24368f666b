import json
import pickle

import h5py
import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError, FastaRecord, TokenTable, open_embeddings
from elmo_fast.embed.embedder import ElmoEmbedder
from elmo_fast.vectors.layouts.arrays import write_arrays
from elmo_fast.vectors.layouts.text_vectors import TextVectors
from elmo_fast.vectors.spec import OutputSpec
from tests.support.files import flip, tiny, write_model
from tests.support.vectors import FORMS, STORES_TEXTS, holds, items_of, kinds, make_items, write

TEXTS = ["The cat sat on the mat .", "", "naïve café 東京", "One", "a b c d a"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return elmo_fast.load(write_model(tmp_path_factory.mktemp("model"), tiny(lstm__dim=12)))


@pytest.mark.parametrize("cuts", [[], [1, 4]])
@pytest.mark.parametrize("layout, name", kinds())
def test_every_layout_gives_the_bits_of_embed(model, tmp_path, layout, name, cuts):
    for number, form in enumerate(form for form in FORMS if holds(layout, form) and not form.targets):
        texts = [text for text in TEXTS if text] if form.pool else TEXTS
        items = items_of(model, form, texts)
        (tmp_path / str(number)).mkdir()
        path = write(layout, tmp_path / str(number) / name, form, items, cuts[: len(texts) - 1], fingerprint={"a": 1})
        wanted = model.embed(texts, form.layers, pool=form.pool)
        with open_embeddings(path) as found:
            assert len(found) == len(texts) and found.layout == layout and found.dtype == form.dtype
            for one, other in zip(found, wanted, strict=True):
                assert one.tobytes() == other.astype(form.dtype).tobytes() and one.shape == other.shape
            assert found.keys == [str(number) for number in range(len(texts))]
            assert (found.by_key("2") == wanted[2].astype(form.dtype)).all()
            if layout not in ("npz", "npy"):
                assert found.pool == form.pool and found.fingerprint == {"a": 1}
                assert found.layers == (form.layers if isinstance(form.layers, str) else list(form.layers))
                assert [found.text(number) for number in range(len(texts))] == texts
                assert [found.tokens(number) for number in range(len(texts))] == [text.split() for text in texts]


@pytest.mark.parametrize("layout, name", kinds(without=["out.npy"]))
@pytest.mark.parametrize("layers", ["all", "average"])
def test_targets_and_occurrences(tmp_path, layout, name, layers):
    form, full = OutputSpec(layers, targets={"wörd1", "wörd3"}), OutputSpec(layers)
    items, every = make_items(form), make_items(full)
    path = write(layout, tmp_path / name, form, items, [10])
    wanted = [(number, position) for number, item in enumerate(items) for position, token in enumerate(item.tokens)
              if token == "wörd3"]
    vectors = np.stack([every[number].vectors[..., position, :] for number, position in wanted])
    found = open_embeddings(path)
    if layout == "npz":  # an array a word
        assert sorted(found.keys) == ["wörd1", "wörd3"] and (found.by_key("wörd3") == vectors).all()
        return
    for number, item in enumerate(items):
        assert (found[number] == item.vectors).all() and found[number].shape == item.vectors.shape
        assert found.positions(number).tolist() == item.positions.tolist()
    if layout in STORES_TEXTS:
        occurring, places = found.occurrences("wörd3")
        assert places == wanted and occurring.tobytes() == vectors.tobytes()
        assert found.occurrences("wörd0")[0].shape == (0, *vectors.shape[1:]) and found.occurrences("wörd0")[1] == []
        whole = open_embeddings(write(layout, tmp_path / f"b{name}", full, every))
        assert whole.positions(0) is None and whole.occurrences("wörd3")[1] == wanted
        assert whole.occurrences("wörd3")[0].tobytes() == vectors.tobytes()


@pytest.mark.parametrize("layout, name", kinds())
def test_it_is_a_sequence(tmp_path, layout, name):
    form = OutputSpec("top", "mean")
    items = make_items(form, 7, keys="id {}".format)
    found = open_embeddings(write(layout, tmp_path / name, form, items, [3]))
    assert sorted(found.keys) == sorted(item.key for item in items)
    for here in (found, pickle.loads(pickle.dumps(found))):
        for item in items:
            assert (here.by_key(item.key) == item.vectors).all()
        assert (here[-1] == here[6]).all() and [each.tolist() for each in here[1:6:2]] == [
            here[number].tolist() for number in (1, 3, 5)]
        for index in (7, -8):
            with pytest.raises(IndexError):
                here[index]
        with pytest.raises(KeyError):
            here.by_key("id 7")
    assert name in repr(found) and found[0].flags.writeable
    found.close()


@pytest.mark.parametrize("layout, name", kinds())
def test_nothing_but_empty_texts_and_no_texts(tmp_path, layout, name):
    if layout != "npy":
        items = [TextVectors("0", "", [], None, np.empty((3, 0, 8), np.float32))]
        found = open_embeddings(write(layout, tmp_path / name, OutputSpec(), items))
        assert found[0].shape == (3, 0, 8) and len(found) == 1
    found = open_embeddings(write(layout, tmp_path / f"b{name}", OutputSpec("top", "mean"), []))
    assert len(found) == 0 and list(found) == found.keys == []


def read_all(path):
    with open_embeddings(path) as found:
        return [(found.keys[number], found.text(number), found.tokens(number), found.positions(number), vectors)
                for number, vectors in enumerate(found)]


@pytest.mark.parametrize("layout, name", kinds())
def test_a_file_cut_short_is_refused(tmp_path, layout, name):
    form = OutputSpec("top", "mean") if layout == "npy" else OutputSpec()
    path = write(layout, tmp_path / name, form, make_items(form, 200), [20])
    file = min(path.iterdir()) if path.is_dir() else path
    content = file.read_bytes()
    for size in (0, 3, 100, len(content) // 2, len(content) - 20):
        file.write_bytes(content[:size])
        with pytest.raises(ConfigurationError, match="^embeddings .*: expected"), open_embeddings(path) as found:
            list(found)


@pytest.mark.parametrize("layout, name", kinds(("parquet", "o.parquet")))
def test_pages_of_parquet_have_checksums(tmp_path, layout, name):
    path = write(layout, tmp_path / name, OutputSpec(), make_items(OutputSpec(), 60))
    flip(path, path.read_bytes().index(make_items(OutputSpec(), 60)[30].vectors[:, 0].tobytes()[:16]))
    with pytest.raises(ConfigurationError, match="^embeddings .*: expected a file of columns"):
        read_all(path)


@pytest.mark.parametrize("layout, name", kinds(("parquet", "o"), ("arrow", "o")))
def test_other_files_in_a_directory_of_parts(tmp_path, layout, name):
    """Files of other programs are passed over, parts of another form are refused."""
    form, suffix = OutputSpec("top"), f".{layout}"
    path = write(layout, tmp_path / name, form, make_items(form, 90), range(1, 90))
    for name in ("_manifest.json", f"_{suffix}", f".hidden{suffix}", "README"):
        (path / name).write_text("{}")
    with open_embeddings(path) as found:
        assert len(found) == 90 and found.keys == [str(number) for number in range(90)]
        assert [vectors.tobytes() for vectors in found] == [item.vectors.tobytes() for item in make_items(form, 90)]
    write(layout, tmp_path / f"other{suffix}", OutputSpec("average"), make_items(OutputSpec("average"))).rename(
        path / f"99999{suffix}")
    with pytest.raises(ConfigurationError, match="99999.*: expected .* as in the first file of its directory, found"):
        open_embeddings(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="expected a directory of files that end in .parquet, .arrow"):
        open_embeddings(tmp_path / "empty")


def test_hdf5_files_of_other_formats_are_refused(tmp_path):
    with h5py.File(tmp_path / "o.h5", "w") as file:
        file.attrs["format"], file["vectors"] = "elmo-fast context index", np.zeros((3, 4), np.float32)
    with pytest.raises(ConfigurationError, match="o.h5: expected vectors of texts, found a file of the format"):
        open_embeddings(tmp_path / "o.h5")


def test_files_of_the_embedder_and_of_allennlp(model, tmp_path):
    embedder, wanted = ElmoEmbedder.from_bilm(model.bilm), model.embed(TEXTS)
    for number, keys in enumerate((False, True)):
        texts = TEXTS if not keys else [text for text in TEXTS if text]
        (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        with open(tmp_path / "t.txt", encoding="utf-8") as file:
            embedder.embed_file(file, tmp_path / f"{number}.hdf5", use_sentence_keys=keys, allow_blank=True)
        with open_embeddings(tmp_path / f"{number}.hdf5") as found:
            assert sorted(found.keys) == sorted(texts if keys else map(str, range(len(TEXTS))))
            for text, vectors in zip(texts, [w for w, t in zip(wanted, TEXTS) if t in texts]):
                key = text if keys else str(texts.index(text))
                assert (found.by_key(key) == vectors).all()
            assert found.layers == "all" and (keys or found.text(2) == TEXTS[2])
    with h5py.File(tmp_path / "theirs.hdf5", "w") as file:  # as AllenNLP's embed_file
        for number in range(12):
            file.create_dataset(str(number), (3, 2, 8), dtype="float32", data=np.full((3, 2, 8), number))
        index = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        index[0] = json.dumps({f"text {number}": str(number) for number in range(12)})
    with open_embeddings(tmp_path / "theirs.hdf5") as found:
        assert [int(vectors[0, 0, 0]) for vectors in found] == list(range(12)) and len(found) == 12
        assert found.tokens(10) == ["text", "10"] and found.dtype == np.float32 and found.layers is None
    with h5py.File(tmp_path / "theirs.hdf5", "a") as file:
        file["word"] = "no vectors"
    with open_embeddings(tmp_path / "theirs.hdf5") as found, pytest.raises(ConfigurationError, match="'word' is no"):
        found.by_key("word")


@pytest.mark.parametrize("stored, found", [
    ("[1]", r"\[1\]"), ('{"a": "b"}', "{'a': 'b'}"), ("[", "expected JSON"), (7, "expected str")])
def test_tokens_of_allennlp_files(tmp_path, stored, found):
    """They are stored where the text does not show them; an attribute of another kind is damage."""
    one = TextVectors("0", "It's fine.", ["It", "'s", "fine", "."], None, np.zeros((3, 4, 2), np.float32))
    two = TextVectors("1", "fine .", ["fine", "."], None, np.ones((3, 2, 2), np.float32))
    path = write("allennlp", tmp_path / "o.h5", OutputSpec(), [one, two], [1])
    with open_embeddings(path) as vectors:
        assert [vectors.tokens(number) for number in (0, 1)] == [one.tokens, two.tokens]
        assert vectors.occurrences("fine")[1] == [(0, 2), (1, 0)]
    with h5py.File(path, "a") as file:
        assert list(file["0"].attrs) == ["tokens"] and not file["1"].attrs
        file["0"].attrs["tokens"] = stored
    with open_embeddings(path) as vectors, pytest.raises(ConfigurationError, match=f"0: attribute tokens.*{found}"):
        vectors.tokens(0)


def test_names_of_rows_lie_beside_the_file_of_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    write_arrays(tmp_path / "real" / "data.npy", [("old", np.zeros(3, np.float32))])
    (tmp_path / "link.npy").symlink_to(tmp_path / "real" / "data.npy")
    write_arrays(tmp_path / "link.npy", [("new", np.ones(3, np.float32))])
    for path in (tmp_path / "link.npy", tmp_path / "real" / "data.npy"):
        with elmo_fast.open_embeddings(path) as found:
            assert found.keys == ["new"] and (found[0] == 1).all()


def test_files_of_seqvec(model, tmp_path):
    records = [FastaRecord("sp|P1 x", "MKTAY"), FastaRecord("Q/2", "MK")]
    wanted = dict(zip(("sp|P1", "Q/2"), model.embed(records, "top", pool="mean")))
    for suffix in (".h5", ".npz", ".npy"):
        model.save_vectors(tmp_path / f"v{suffix}", records, "top", pool="mean")
        with open_embeddings(tmp_path / f"v{suffix}") as found:
            assert sorted(found.keys) == sorted(wanted)
            assert all((found.by_key(key) == vectors).all() for key, vectors in wanted.items())
            for ask in (found.text, found.tokens):
                with pytest.raises(ConfigurationError, match=r"expected a file that stores (text|tokens), found none"):
                    ask(0)
            with pytest.raises(ConfigurationError, match="expected (vectors of tokens, found pooled ones|a file that "
                               "stores tokens, found none)"):
                found.occurrences("M")
    (tmp_path / "v.json").write_text('["one"]')
    with pytest.raises(ConfigurationError, match="2 vectors with 1 names in v.json"):
        open_embeddings(tmp_path / "v.npy")


@pytest.mark.parametrize("names", [[f"sp|P{11 - number}" for number in range(12)], list(range(20, 32))])
def test_names_in_files_of_bio_embeddings(tmp_path, names):
    """Its pipeline numbers sequences and stores the names of the FASTA file as attributes."""
    with h5py.File(tmp_path / "reduced_embeddings_file.h5", "w") as file:
        for number, name in enumerate(names):
            file.create_dataset(str(number), data=np.full(4, number, np.float32)).attrs["original_id"] = name
    with open_embeddings(tmp_path / "reduced_embeddings_file.h5") as found:
        assert found.keys == list(map(str, names)) and found.positions(0) is None
        for number, name in enumerate(names):
            assert (found.by_key(str(name)) == number).all()


def test_what_holds_no_vectors_of_texts_is_named(tmp_path):
    TokenTable(np.ones((3, 6), np.float32), ["<S>", "</S>", "a"], "0123").save(tmp_path / "table.hdf5")
    with h5py.File(tmp_path / "bilm.hdf5", "w") as file:
        file["embedding"] = np.ones((3, 6))
    write_model(tmp_path / "model")
    (tmp_path / "text").write_text("a b c\n")
    for name, error, message in (
            *((name, ConfigurationError, "found a table of token vectors .elmo-fast cache, or bilm-tf's")
              for name in ("table.hdf5", "bilm.hdf5")),
            ("model/weights.hdf5", ConfigurationError, "found the weights of a model"),
            ("text", ConfigurationError, "expected HDF5, Parquet, Arrow, .npz or .npy, found none of them"),
            ("none", FileNotFoundError, "embeddings: expected a file or directory, found nothing at")):
        with pytest.raises(error, match=message):
            open_embeddings(tmp_path / name)
    form = OutputSpec("top", "mean")
    with pytest.raises(ConfigurationError, match="expected vectors of tokens, found pooled ones"):
        open_embeddings(write("allennlp", tmp_path / "p.h5", form, make_items(form))).occurrences("a")


@pytest.mark.parametrize("layout, name", kinds(("parquet", "o.parquet"), ("arrow", "o.arrow")))
def test_columns_of_others_are_refused(tmp_path, layout, name):
    import pyarrow
    from pyarrow import feather, parquet

    write_table = parquet.write_table if layout == "parquet" else feather.write_feather
    write_table(pyarrow.table({"a": [1]}), tmp_path / name)
    with pytest.raises(ConfigurationError, match="wrote, found another file with the columns a"):
        open_embeddings(tmp_path / name)
