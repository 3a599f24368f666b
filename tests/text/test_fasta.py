import gzip

import pytest

from elmo_fast.text.fasta import FastaRecord, read_fasta

TEXT = ">sp|P1|ONE first protein\nMKT aa\n\nWQ\n>two\r\nACDEF\r\n"
RECORDS = [FastaRecord("sp|P1|ONE first protein", "MKTaaWQ"), FastaRecord("two", "ACDEF")]


@pytest.mark.parametrize("name", ["proteins.fasta", "proteins.fasta.gz"])
def test_records_join_their_lines_and_lose_whitespace(tmp_path, name):
    path = tmp_path / name
    opened = gzip.open if name.endswith(".gz") else open
    with opened(path, "wb") as file:
        file.write(TEXT.encode())
    assert list(read_fasta(path)) == RECORDS


def test_a_byte_order_mark_is_no_part_of_the_first_header(tmp_path):
    path = tmp_path / "a.fasta"
    path.write_bytes(b"\xef\xbb\xbf>one\nMK\n")
    assert list(read_fasta(path)) == [FastaRecord("one", "MK")]


@pytest.mark.parametrize("content, words", [
    (b"", "at least one record"),
    (b"\n \n", "at least one record"),
    (b"MKT\n>one\nMK\n", "begins with '>', got 'MKT' at line 1"),
    (b">one\n>two\nMK\n", "under 'one'"),
    (b">one\nMK\n>two\n \n", "under 'two'"),
    (b">one\n\xff\xfe\n", "undecodable bytes"),
])
def test_what_is_no_fasta_is_refused(tmp_path, content, words):
    path = tmp_path / "a.fasta"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="FASTA file") as caught:
        list(read_fasta(path))
    assert words in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [5, 20, -6])
def test_a_gzip_file_that_is_cut_short_is_refused(tmp_path, cut):
    path = tmp_path / "a.fasta.gz"
    path.write_bytes(gzip.compress(TEXT.encode() * 3)[:cut])
    with pytest.raises(ValueError, match="complete gzip file"):
        list(read_fasta(path))
