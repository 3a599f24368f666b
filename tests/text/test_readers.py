"""`open_texts`: formats, compressions, tokenizers, pipes and refusals."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from elmo_fast import ConfigurationError, open_texts
from elmo_fast.engine.table_file import read_table
from elmo_fast.files import stops
from elmo_fast.text.readers import Text
from tests.support.files import run, start, tiny, write_model
from tests.support.softmax import write_softmax_model

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
CONLLU = """\
# sent_id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tya\tya\tADV\t_\t_\t_\t_\t_\t_
3\tMar Menor\t_\tPROPN\t_\t_\t1\tobl\t_\t_

# a comment alone

1\t#\t#\tSYM\t_\t_\t0\troot\t_\t_
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into the working directory, compressed by its suffix, and return its name."""
    monkeypatch.chdir(tmp_path)

    def write(name, content):
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(COMPRESS.get(os.path.splitext(name)[1], bytes)(content))
        return name
    return write


def tokens(*arguments, **options):
    with open_texts(*arguments, **options) as texts:
        return [text.tokens for text in texts]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name, content, expected", [
    ("a.txt", "\ufeffa  b\r\nc\n", [("0", "a  b", ["a", "b"]), ("1", "c", ["c"])]),
    ("a", "x" * 44_000 + " y", [("0", "x" * 44_000 + " y", ["x" * 44_000, "y"])]),
    ("a.faa", ">sp|P1 first\nMK\nV\n>\nAC\n", [("sp|P1", "MKV", ["M", "K", "V"]), ("1", "AC", ["A", "C"])]),
    ("a.jsonl", '{"text": " a\\nb "}\n\n{"id": 7, "text": ["x y", "z"]}\n{"id": "k", "text": "\\u00e9"}',
     [("0", "a\nb", ["a", "b"]), ("7", "x y z", ["x y", "z"]), ("k", "é", ["é"])]),
    ("a.csv", '\ufeffid, text\n7,"a ""b"", c"\n,"two\nlines"\n\nk, d\n',
     [("7", 'a "b", c', ["a", '"b",', "c"]), ("1", "two\nlines", ["two", "lines"]), ("k", "d", ["d"])]),
    ("a.csv", "text;id\na, b;3", [("3", "a, b", ["a,", "b"])]),
    ("a.csv", "id\ttext\n3\ta; b,", [("3", "a; b,", ["a;", "b,"])]),
    ("a.json", '{"text": "a b"}\n', [("0", "a b", ["a", "b"])]),
    ("a.tsv", "label\ttext\n1\ta, b\n2\t\"c\td\"\n", [("0", "a, b", ["a,", "b"]), ("1", "c\td", ["c", "d"])]),
    ("a.CONLLU", CONLLU, [("0", "Vamos nos Mar Menor", ["Vamos", "nos", "Mar Menor"]), ("1", "#", ["#"])]),
])
def test_formats(write, suffix, name, content, expected):
    for written in (content, content.replace("\r", "").replace("\n", "\r\n")):
        with open_texts(write(name + suffix, written)) as texts:
            assert texts.count() == len(expected) and texts.paths == [name + suffix]
            assert (rows := list(texts)) == expected and isinstance(rows[0], Text) and list(texts) == []


def test_inputs_are_one_stream_in_order(write):
    for name in ("b2.txt", "b1.txt", "b10.txt"):
        write(name, f"{name}\n")
    write("a.fa", ">P\nMK\n")
    write("[x].txt", "brackets\n")
    os.mkdir("b3.txt")
    with open_texts(["b*.txt", "a.fa", "b2.txt", "[x].txt"]) as texts:
        assert texts.count() == 6
        assert [(text.key, text.text) for text in texts] == [
            ("0", "b1.txt"), ("1", "b10.txt"), ("2", "b2.txt"), ("P", "MK"), ("4", "b2.txt"), ("5", "brackets")]


def test_format_and_field_are_arguments(write):
    write("a.txt", '{"body": "a b", "text": 1}\n')
    assert tokens("a.txt", format="jsonl", field="body") == [["a", "b"]]
    assert tokens("a.txt", format="text")[0][0] == '{"body":'


@pytest.mark.parametrize("tokenizer, text, expected", [
    ("whitespace", "It's 3.14 , ok", ["It's", "3.14", ",", "ok"]),
    ("simple", "It's snake_case, 3.14!?", ["It", "'", "s", "snake_case", ",", "3", ".", "14", "!", "?"]),
    ("simple", "हिन्दी भाषा।", ["हिन्दी", "भाषा", "।"]),
    ("simple", "nai\u0308ve—東京", ["nai\u0308ve", "—", "東京"]),
    ("simple", "\u2764\ufe0f\U0001f600", ["\u2764\ufe0f", "\U0001f600"]),
    (list, "ab", ["a", "b"]), (lambda text: tuple(text.split("b")), "abc", ["a", "c"]),
    (iter, "ab", ["a", "b"]), (lambda text: np.array(text.split()), "a b", ["a", "b"]),
    (lambda text: (word for word in text.split("b")), "abc", ["a", "c"]),
    ("builtins:list", "ab", ["a", "b"]), ("own.tools:split", "a-b", ["a", "b"]),
])
def test_tokenizers(write, monkeypatch, tokenizer, text, expected):
    os.mkdir("own")
    write("own/tools.py", "def split(text):\n    return text.split('-')\nnumber = 3\n")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    write("a.jsonl", json.dumps({"text": text}) + '\n{"text": ["given tokens"]}')
    assert tokens("a.jsonl", tokenizer=tokenizer) == [expected, ["given tokens"]]
    sys.modules.pop("own.tools", None), sys.modules.pop("own", None)


@pytest.mark.parametrize("tokenizer, message", [
    ("spacy", "tokenizer: expected auto, whitespace, penn, simple, a function or package.module:function, got 'spacy'"),
    (None, "tokenizer: expected auto, whitespace, penn, simple, a function or package.module:function, got None"),
    *((name, f"tokenizer: expected package.module:function, got '{name}' ") for name in (
        "no_such_module:f", "json:no_such", ":", "a b:c")),
    ("json:", "tokenizer: expected a function, got json: of type module"),
    ("sys:path", "tokenizer: expected a function, got sys:path of type list"),
    (str.upper, "tokenizer, of 'a b': expected a list of tokens, got the str 'A B'; split it first"),
    (lambda text: [1], r"tokenizer, of 'a b': expected strings, got \[1\]"),
    (lambda text: (b"a" for _ in text), r"tokenizer, of 'a b': expected strings, got \[b'a', b'a', b'a'\]"),
    (lambda text: None, "tokenizer, of 'a b': expected a list of tokens, got NoneType"),
    ("os:getcwd", r"tokenizer, of 'a b': expected a function of a string, got one that failed \(.*arguments"),
    (lambda text: {"a": 1}, "tokenizer, of 'a b': expected a list of tokens, got dict"),
    (lambda text: [], "input file: expected tokens in every text, got none in text 1 of a.txt"),
])
def test_a_bad_tokenizer_is_refused(write, tokenizer, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        tokens(write("a.txt", "a b\n"), tokenizer=tokenizer)


@pytest.mark.parametrize("inputs, options, error, message", [
    ("none.txt", {}, FileNotFoundError, "input: expected files, found none at none.txt"),
    ("*.none", {}, FileNotFoundError, "input: expected files, found none at *.none"),
    (["a.txt", "."], {}, IsADirectoryError, "a glob, got the directory .; ./* are its files"),
    ([], {}, ConfigurationError, "input: expected at least one file, got none"),
    *((name, {}, ConfigurationError, f"input: expected files of texts, got {name}; unpack it") for name in (
        "a.tar", "a.tgz", "a.TAR.xz")),
    (["-", "-"], {}, ConfigurationError, "input: expected stdin (-) once, got it twice"),
    (3, {}, ConfigurationError, "input: expected paths, got 3"),
    (io.StringIO("a.txt"), {}, ConfigurationError, "input: expected paths, got <_io.StringIO"),
    ("a.txt", {"format": "xml"}, ConfigurationError,
     "format: expected one of text, conllu, fasta, csv, tsv, jsonl, parquet"),
    ("a.txt", {"field": "x"}, ConfigurationError,
     "field: expected files of csv, tsv, jsonl, parquet beside 'x', got a.txt of text"),
    ("a.fa", {"tokenizer": "simple"}, ConfigurationError,
     "tokenizer: expected files of text, csv, tsv, jsonl, parquet, got a.fa of fasta"),
    ("a.parquet.gz", {}, ConfigurationError, "Parquet: expected a file, not compressed as a whole and no pipe"),
    ("-", {"format": "parquet"}, ConfigurationError, "Parquet: expected a file, not compressed as a whole and no pipe"),
])
def test_bad_arguments_are_refused_before_reading(write, inputs, options, error, message):
    for name in ("a.txt", "a.fa", "a.parquet.gz", "a.tar", "a.tgz", "a.TAR.xz"):
        write(name, "")
    with pytest.raises(error) as caught:
        open_texts(inputs, **options)
    assert message in str(caught.value)


ROW = "1\ta\t_\t_\t_\t_\t_\t_\t_\t_\n"


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", "", "input file: expected one tokenized sentence a line, got an empty file: a.txt"),
    ("a.txt.xz", "", "input file: expected one tokenized sentence a line, got an empty file: a.txt.xz"),
    ("a.jsonl", "\n", "input file: expected at least one text, got none in a.jsonl"),
    ("a.conllu", "# only\n", "input file: expected at least one text, got none in a.conllu"),
    ("a.fa.gz", "", "FASTA file: expected at least one record, got none in a.fa.gz"),
    ("a.fa", "MK\n", "FASTA file: expected a header that begins with '>', got 'MK' at line 1 of a.fa"),
    *((f"a.{kind}", b"\xff" * 9, f"input file: expected UTF-8 text, got undecodable bytes at line 1 of a.{kind} ")
      for kind in ("txt", "txt.gz", "conllu.bz2", "jsonl.xz", "fa")),
    *(("a.conllu", ROW + text, f"CoNLL-U: {message} at line 2 of a.conllu") for text, message in (
        ("2 b\n", "expected 10 columns separated by tabs, got 1"),
        (ROW.strip("\n") + "\t_", "expected 10 columns separated by tabs, got 11"),
        (ROW.replace("1", "x"), "expected a number and a form, got 'x' and 'a'"),
        (ROW.replace("a", " "), "expected a number and a form, got '1' and ' '"))),
    *(("a.jsonl", '{"text": "a"}\n' + line, f"{message} at line 2 of a.jsonl") for line, message in (
        ("{", "JSON lines: expected an object on every line, got '{'"),
        ('["a"]', "JSON lines: expected an object on every line, got '[\"a\"]'"),
        ("[" * 100_000, f"JSON lines: expected an object on every line, got '{'[' * 39}"),
        *((line, "JSON lines: expected text, got half of a surrogate pair") for line in (
            '{"text": "\\ud800"}', '{"text": ["a", "\\udC00"]}', '{"text": "a", "id": "\\ud800"}')),
        ('{"Text": "a", "b": 1}', "JSON lines: expected the key 'text', got ['Text', 'b']"),
        ("{}", "JSON lines: expected the key 'text', got []"),
        ('{"text": 3}', "text: expected a string or a list of strings, got 3"),
        ('{"text": ["a", null]}', "text: expected a string or a list of strings, got ['a', None]"),
        ('{"text": "a", "id": [1]}', "id: expected a string or an integer, got [1]"),
        ('{"text": "a", "id": true}', "id: expected a string or an integer, got True"))),
    *(("a.json", text, "JSON lines: expected an object on every line, got '[") for text in (
        '[{"text": "a"}]', '[\n  {"text": "a"}\n]\n')),
    ("a.csv", "", "CSV: expected one column 'text' in the first line, got [] in a.csv; --field NAME (in Python "),
    ("a.tsv.gz", "a\tb\n", "TSV: expected one column 'text' in the first line, got ['a', 'b'] in a.tsv.gz; --field"),
    ("a.csv", "text,text\na,b\n", "CSV: expected one column 'text' in the first line, got ['text', 'text'] in a.csv"),
    ("a.csv", "id,text\n\n", "input file: expected at least one text, got none in a.csv"),
    *(("a.csv", f"id,text\n{row}", f"CSV: expected {message} at line 2 of a.csv") for row, message in (
        ("1,a, b\n", "the 2 columns of the first line, got 3"), ("1\n", "the 2 columns of the first line, got 1"),
        ('1,"a', "columns quoted as in RFC 4180, found others"),
        ('1,"a"b\n', "columns quoted as in RFC 4180, found others"),
        ("1," + "a" * 200_000, "columns quoted as in RFC 4180, found others"))),
])
def test_unreadable_texts_are_refused_with_their_place(write, name, content, message):
    write(name, content)
    for read in (lambda texts: texts.count(), list):
        with pytest.raises(ValueError) as caught, open_texts(name, allow_blank=True) as texts:
            read(texts)
        begin, _, place = message.partition(" at line 2")
        assert str(caught.value).startswith(begin) and place in str(caught.value)


@pytest.mark.parametrize("name, content, expected", [
    ("a.txt", "a\n \nb\n", [["a"], [], ["b"]]), ("a.jsonl", '{"text": "a"}\n{"text": " "}\n', [["a"], []]),
    ("a.jsonl", '{"text": ["a"]}\n{"text": []}\n', [["a"], []]),
    ("a.conllu", ROW + "\n" + ROW.replace("1", "1.1"), [["a"], []]),
])
def test_blank_texts_are_refused_unless_allowed(write, name, content, expected):
    write(name, content)
    assert tokens(name, allow_blank=True) == expected and open_texts(name, allow_blank=True).count() == len(expected)
    for read in (lambda texts: texts.count(), list):
        with pytest.raises(ConfigurationError, match=rf"^input file: .* (line|text) 2 of {name}; remove .*, or allow "):
            read(open_texts(name))


@pytest.mark.parametrize("suffix, kind", [(".gz", "gzip"), (".bz2", "bzip2"), (".xz", "xz")])
@pytest.mark.parametrize("name", ["a.txt", "a.fasta"])
@pytest.mark.parametrize("way", ["cut", "changed", "text"])
def test_damaged_compressed_files_are_refused(write, suffix, kind, name, way):
    content = COMPRESS[suffix](b">header\n" + random.Random(0).randbytes(5000).hex().encode())
    damaged = {"cut": content[:-30], "changed": content[:500] + b"damage" + content[506:], "text": b"plain text"}
    with open(name + suffix, "wb") as file:
        file.write(damaged[way])
    for read in (lambda texts: texts.count(), list):
        with pytest.raises(ValueError, match=f"^input file: expected a complete {kind} file, got {name}{suffix} [(].+"):
            read(open_texts(name + suffix))


@pytest.mark.long
@pytest.mark.parametrize("name, begin, line, message", [
    ("a.txt.gz", b"", b"a" * (1 << 20), "lines of at most 268,435,456 characters"),
    ("a.fa.gz", b">a\n", b"A" * 1023 + b"\n", "sequences of at most 268,435,456 letters")])
def test_lines_and_records_have_a_limit(write, name, begin, line, message):
    with gzip.open(name, "wb", 1) as file:
        file.write(begin)
        for _ in range(257):
            file.write(line * ((1 << 20) // len(line)))
    with pytest.raises(ValueError, match=f"{message}.*{name}"):
        open_texts(name).count()


def test_an_error_of_the_system_has_the_name(write):
    """A file that is removed before it is read."""
    texts = open_texts([write("a.txt", "a\n"), write("b.txt", "b\n")])
    rows = iter(texts)
    assert texts.count() == 2 and next(rows).text == "a"
    os.remove("a.txt"), os.remove("b.txt")
    with pytest.raises(FileNotFoundError, match="'b.txt'"):
        next(rows)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_named_pipe_is_read_once(write, suffix):
    name = f"pipe{suffix}"
    os.mkfifo(name)
    thread = threading.Thread(target=Path(name).write_bytes, args=[COMPRESS[suffix](b"a b\nc\n")])
    thread.start()
    with open_texts(name) as texts:
        assert texts.count() is None and [text.tokens for text in texts] == [["a", "b"], ["c"]]
    thread.join()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_stop_ends_the_wait_for_a_pipe(write, suffix):
    name = f"pipe{suffix}"
    os.mkfifo(name)
    pipe = os.open(name, os.O_RDWR)  # a writer that does not write
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), stops.stoppable(), open_texts(name) as texts:
        timer.start()
        list(texts)
    os.close(pipe)


def test_stdin(write):
    code = "from elmo_fast import open_texts\nt = open_texts('-')\nprint(t.count(), [x.tokens for x in t], t.paths)"
    process = start(code, stdin=-1)
    assert process.communicate("a b\nc\n", timeout=60) == ("None [['a', 'b'], ['c']] []\n", "")
    write("a.jsonl", '{"text": "a b"}\n{"text": "c"}\n')
    with open("a.jsonl") as file:
        process = start(code.replace("'-'", "'-', format='jsonl'"), stdin=file)
        assert process.communicate(timeout=60) == ("2 [['a', 'b'], ['c']] []\n", "")


def test_a_closed_stdin_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigurationError, match="^input file: expected text on stdin, which is closed"):
        open_texts("-")


@pytest.mark.parametrize("name, module, extra", [
    ("a.txt.zst", "backports", "zstd"), ("a.parquet", "pyarrow", "parquet")])
def test_an_absent_library_names_its_extra(write, monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.parquet", None)
    with pytest.raises(ImportError, match=rf'pip install "elmo-fast\[{extra}\]"$'):
        open_texts(write(name, b""))


def test_the_cache_command_reads_any_input(write, capsys, tmp_path):
    write("a.conllu.gz", CONLLU)
    write("b.jsonl", '{"text": "al mar"}')
    model = write_model(tmp_path / "model")
    assert run(capsys, "cache", "--corpus", "[ab].*", "t.hdf5", "--model", model, "--quiet") == (0, "", "")
    table = read_table("t.hdf5", in_memory=True)
    assert table.header.words == ["<S>", "</S>", *"Vamos nos".split(), "Mar Menor", "#", "al", "mar"]
    status, _, errors = run(capsys, "cache", "--corpus", "[ab].*", "b.jsonl", "--model", model, "--quiet")
    assert status == 2 and "output file: expected a file other than the inputs, got b.jsonl" in errors


def test_a_column_is_named_in_every_command(write, capsys, tmp_path):
    """A CSV is read by column, with the same results as its texts a line, or refused by the column's name."""
    model = write_softmax_model(tmp_path / "model", tiny(lstm__dim=12))
    write("plain.txt", "a b b\nc , d\n")
    write("a.csv.gz", 'body,n\na b b,1\n"c, d",2\n')
    for command, *rest in (["embed", "{}", "o.npz"], ["score", "{}"], ["substitutes", "{}", "--top", "2"],
                           ["cache", "--corpus", "{}", "t.hdf5"], ["nearest", "{}", "--word", "b"]):
        arguments = [*rest, "--model", model]
        status, _, error = run(capsys, command, *(str(word).format("a.csv.gz") for word in arguments))
        assert status == 2 and "got ['body', 'n'] in a.csv.gz; --field NAME" in error and error.count("\n") == 1
        results = [run(capsys, command, *(str(word).format(name) for word in arguments), *extra) for name, extra in (
            ("plain.txt", []), ("a.csv.gz", ["--field", "body", "--tokenizer", "simple"]))]
        assert results[0][0] == results[1][0] == 0, results
        assert [output.replace("c, d", "c , d") for _, output, _ in results] == [results[0][1]] * 2
    status, _, error = run(capsys, "embed", "plain.txt", "o.npz", "--field", "body", "--model", model)
    assert status == 2 and "field: expected files of csv, tsv, jsonl, parquet beside 'body', got plain.txt" in error


def test_raw_text_gets_one_warning(write, caplog):
    """Warn where most of the first texts are raw and the tokenizer expects tokenized text."""
    raw, tokenized = "They don't play.\n", "They do n't play .\n"
    for lines, count in ((raw * 3 + tokenized * 2, 1), (raw * 2 + tokenized * 2, 0), (tokenized * 200 + raw * 900, 0),
                         (raw * 900, 1)):
        for tokenizer, expected in (("whitespace", count), ("auto", 0)):
            caplog.clear()
            assert len(tokens(write("a.txt", lines), tokenizer=tokenizer)) == lines.count("\n")
            assert len(caplog.records) == expected
            assert all("--tokenizer auto" in record.getMessage() and "They don't play." in record.getMessage()
                       for record in caplog.records)
