"""Damaged and hostile ZIPs, and a full disk under them."""

import zipfile

import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.model import hdf5
from elmo_fast.model.sources import find_model
from tests.support.files import full_disk
from tests.support.sources import assert_is, contents, left, pack

pytestmark = pytest.mark.usefixtures("cache")


def declare(archive, size):
    """The bytes of a ZIP whose directory says that every member unpacks to `size` bytes."""
    with zipfile.ZipFile(archive) as file:
        start = file.start_dir
    content = bytearray(archive.read_bytes())
    while (start := content.find(b"PK\x01\x02", start)) >= 0:
        content[start + 24 : start + 28] = size.to_bytes(4, "little")
        start += 4
    return content


def test_a_zip_bomb_is_refused_before_it_is_unpacked(model, tmp_path, cache, monkeypatch):
    archive = pack(tmp_path / "m.zip", {**contents(model), "vocab.txt": b"<S>\n</S>\n"})
    archive.write_bytes(declare(archive, 0xF0000000))  # three members
    with pytest.raises(ConfigurationError, match=f"^model {archive}: expected at most 8 GB, or 10 times the .* bytes "
                                                 "of the file, when unpacked, found 12,079,595,520 bytes$"):
        find_model(archive)
    assert left(cache, "*.part") == []
    pack(archive, {**contents(model), "vocab.txt": bytes(1 << 20)})
    monkeypatch.setattr(hdf5, "MOST_UNPACKED", 1 << 20)
    with pytest.raises(ConfigurationError, match="when unpacked"):
        find_model(archive)


def test_a_member_unpacks_to_no_more_than_it_declares(model, tmp_path, cache):
    archive = pack(tmp_path / "m.zip", {**contents(model), "vocab.txt": bytes(1 << 20)})
    archive.write_bytes(declare(archive, 100))
    with pytest.raises(ConfigurationError, match=f"^model {archive}: expected a complete ZIP file without a password"):
        find_model(archive)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2,
                                         zipfile.ZIP_LZMA])
def test_damage_anywhere_in_a_zip_is_refused_by_its_name_or_harmless(model, tmp_path, compression):
    archive = pack(tmp_path / "m.zip", contents(model), compression)
    content, generator = archive.read_bytes(), np.random.default_rng(compression)
    with zipfile.ZipFile(archive) as file:
        directory = file.start_dir
    messages = []
    for number in range(120):
        damaged = bytearray(content)
        for position in generator.integers(directory if number % 2 else 0, len(content), 3):
            damaged[position] = generator.integers(256)
        archive.write_bytes(damaged)
        try:
            assert_is(find_model(archive), model)
        except (ConfigurationError, FileNotFoundError) as error:
            messages.append(str(error))
    assert len(messages) > 30 and all(str(archive) in message and "\n" not in message for message in messages)


@pytest.mark.parametrize("name", ["", "a/", "/"])
def test_members_without_a_name_do_no_harm(model, tmp_path, name):
    archive = pack(tmp_path / "m.zip", contents(model))
    with zipfile.ZipFile(archive, "a") as file:
        info = zipfile.ZipInfo("x")
        info.filename = name
        file.writestr(info, b"")
    assert_is(find_model(archive), model)


def test_a_full_disk_under_a_zip_is_named(model, tmp_path, cache):
    archive = pack(tmp_path / "m.zip", contents(model))
    with full_disk(), pytest.raises(OSError, match=f"File too large: '{cache}/unpacked/m-"):
        find_model(archive)
    assert left(cache, "*.part") == []
