import gzip

import pytest

from elmo_fast.text.fasta import FastaRecord, read_fasta

TEXT = ">sp|P1|ONE first protein\nMKT aa\n\nWQ\n>two\r\nACDEF\r\n"
RECORDS = [FastaRecord("sp|P1|ONE first protein", "MKTaaWQ"), FastaRecord("two", "ACDEF")]


@pytest.mark.parametrize("name", ["proteins.fasta", "proteins.fasta.gz"])
def test_records_join_their_lines_and_lose_whitespace(tmp_path, name):
    path = tmp_path / name
    for mark in (b"", b"\xef\xbb\xbf"):  # a byte-order mark is not part of the first header
        content = mark + TEXT.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert list(read_fasta(path)) == RECORDS


@pytest.mark.parametrize("content, words", [
    (b"", "at least one record"),
    (b"\n \n", "at least one record"),
    (b"MKT\n>one\nMK\n", "begins with '>', got 'MKT' at line 1"),
    (b">one\n>two\nMK\n", "under 'one'"),
    (b">one\nMK\n>two\n \n", "under 'two'"),
    (b">one\n\xff\xfe\n", "undecodable bytes"),
    *((gzip.compress(TEXT.encode() * 3, mtime=0)[:cut], "complete gzip file") for cut in (5, 20, -6)),
])
def test_malformed_fasta_is_refused(tmp_path, content, words):
    path = tmp_path / ("a.fasta.gz" if "gzip" in words else "a.fasta")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="FASTA file") as caught:
        list(read_fasta(path))
    assert words in str(caught.value) and str(path) in str(caught.value)
