"""Inputs that need pyarrow (Parquet) or Zstandard (`.zst`)."""

import random

import pytest

from elmo_fast import ConfigurationError, open_texts

pytestmark = pytest.mark.long
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")
zstd = pytest.importorskip("backports.zstd", reason="backports.zstd is not installed: make test-integrations")

from pyarrow import parquet  # noqa: E402

TEXTS = ["A new play opened .", " One ", "naïve café 東京", "x" * 44_000] * 700  # more than one batch of rows
LISTS = [[*text.split(), "two words"] for text in TEXTS]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(columns, name="a.parquet", **options):
    parquet.write_table(pyarrow.table(columns), name, **options)
    return name


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(),
                                  pyarrow.dictionary(pyarrow.int32(), pyarrow.string())])
def test_a_column_of_strings(folder, kind):
    strings = pyarrow.array(TEXTS, pyarrow.string()).cast(kind)
    with open_texts(write({"id": range(7, 7 + len(TEXTS)), "text": strings}, row_group_size=1500)) as texts:
        assert texts.count() == len(TEXTS)
        for number, (text, expected) in enumerate(zip(texts, TEXTS, strict=True)):
            assert text == (str(number + 7), expected.strip(), expected.split())


@pytest.mark.parametrize("kind", [pyarrow.list_(pyarrow.string()), pyarrow.large_list(pyarrow.large_string())])
def test_a_column_of_lists_of_tokens(folder, kind):
    name = write({"body": pyarrow.array(LISTS, kind), "id": [f"k{k}" for k in range(len(LISTS))]})
    with open_texts(name, field="body", tokenizer="simple") as texts:
        for number, (text, expected) in enumerate(zip(texts, LISTS, strict=True)):
            assert text == (f"k{number}", " ".join(expected), expected)


def test_a_row_group_is_read_in_parts(folder):
    generator = random.Random(0)
    rows = ["".join(generator.choices("abcdefgh ", k=1000)) for _ in range(300)] * 100
    write({"text": rows}, row_group_size=len(rows), use_dictionary=False, compression="none")
    del rows
    before, most = pyarrow.total_allocated_bytes(), 0
    for number, _ in enumerate(open_texts("a.parquet")):
        most = max(most, pyarrow.total_allocated_bytes() if number % 1000 == 0 else 0)
    assert most - before < 10 << 20


@pytest.mark.parametrize("columns, options, message", [
    ({"body": ["a"], "id": ["k"]}, {}, r"Parquet: expected a column 'text', got \['body', 'id'\] in a.parquet"),
    ({"text": [1, 2]}, {}, "Parquet: expected strings or lists of strings in column 'text', got int64 in a.parquet"),
    ({"text": [[[""]]]}, {}, "Parquet: expected strings or lists of strings in column 'text', got list<"),
    ({"text": ["a"] * 1500 + [None]}, {}, "text: expected a string or a list of strings, got None in row 1501 "),
    ({"text": [["a"], ["b", None]]}, {}, r"text: expected a string or .*, got \['b', None\] in row 2 of a.parquet"),
    ({"text": ["a"], "id": [0.5]}, {}, "id: expected a string or an integer, got 0.5 in row 1 of a.parquet"),
    ({"text": ["a", " "]}, {}, "input file: expected tokens in every text, got none in text 2 of a.parquet"),
    ({"text": pyarrow.array([], pyarrow.string())}, {}, "input file: expected at least one text, got none in a.par"),
    ({"text": pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"),
                                                               pyarrow.py_buffer(b"\xff")])}, {},
     "Parquet: expected a complete file, got a.parquet .*utf-8"),
])
def test_rows_that_are_no_text_are_refused(folder, columns, options, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        list(open_texts(write(columns), **options))


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: b"text", lambda content: content[:-9],
                                    lambda content: content[:100] + bytes(500) + content[600:],
                                    lambda content: content.replace(b"opened", b"closed", 1)])
def test_a_damaged_parquet_file_is_refused(folder, damage):
    write({"text": TEXTS[:3] * 50}, use_dictionary=False, write_page_checksum=True, compression="none")
    (folder / "a.parquet").write_bytes(damage((folder / "a.parquet").read_bytes()))
    with pytest.raises(ConfigurationError, match=r"^Parquet: expected a complete file, got a.parquet \(.+\)$"):
        list(open_texts("a.parquet"))


def compressed(text):
    """Two frames, and a skippable frame between them."""
    half = len(text) // 2
    skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    first, second = (zstd.compress(part, options={zstd.CompressionParameter.checksum_flag: 1})
                     for part in (text[:half], text[half:]))
    return first + skipped + second


def test_zstandard_frames_are_one_file(folder):
    text = "\n".join(TEXTS).encode()
    (folder / "a.txt.zst").write_bytes(compressed(text))
    with open_texts("a.txt.zst") as texts:
        assert texts.count() == len(TEXTS) and [text.text for text in texts] == [text.strip() for text in TEXTS]


@pytest.mark.parametrize("way, reason", [
    ("cut", "ended before the end-of-stream marker"), ("changed", "."), ("text", "."), ("appended", ".")])
def test_a_damaged_zstandard_file_is_refused(folder, way, reason):
    content = compressed(random.Random(0).randbytes(5000).hex().encode())
    (folder / "a.fa.zst").write_bytes({"cut": content[:-7], "changed": content[:300] + b"damage" + content[306:],
                                       "text": b">plain\nMK\n", "appended": content + b"more"}[way])
    for form in (None, "text"):
        expected = rf"^input file: expected a complete Zstandard file, got a.fa.zst \(.*{reason}"
        with pytest.raises(ValueError, match=expected):
            list(open_texts("a.fa.zst", format=form, allow_blank=True))
