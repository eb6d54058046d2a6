"""Compressed text files: equal text makes equal bytes, and what is damaged or too large is refused."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from sparsegen.errors import ResultsError
from sparsegen.system.compressed import compress, decompress
from sparsegen.system.publish import publish_text
from sparsegen.tuning_db.json_reader import read_text

TEXT = '{"rows": ["µs", 1, 2, 3]}\n' * 500


def test_equal_text_makes_equal_bytes() -> None:
    assert compress(TEXT) == compress(TEXT) and len(compress(TEXT)) < len(TEXT) // 16
    assert decompress(compress(TEXT), 10**6).decode() == TEXT


@pytest.mark.parametrize("name", ["results.json", "results.json.xz"])
def test_files_are_compressed_by_their_names(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    publish_text(file, TEXT)
    assert read_text(file, 10**6) == TEXT
    assert (file.read_bytes() == TEXT.encode()) == (file.suffix == ".json")


def test_what_is_too_large_is_not_decompressed_whole(tmp_path: Path) -> None:
    file = tmp_path / "zeros.json.xz"
    file.write_bytes(lzma.compress(bytes(50_000_000)))
    assert file.stat().st_size < 10_000
    with pytest.raises(ResultsError, match=r"zeros\.json\.xz: decompressed it has more than 100000 bytes"):
        read_text(file, 100_000, ResultsError)


@pytest.mark.parametrize(
    "damaged",
    [b"", b"no xz", compress(TEXT)[:-5], compress(TEXT) + b"more", lzma.compress(b"x", lzma.FORMAT_ALONE)],
)
def test_damaged_files_are_refused(tmp_path: Path, damaged: bytes) -> None:
    file = tmp_path / "damaged.json.xz"
    file.write_bytes(damaged)
    with pytest.raises(ResultsError, match=r"damaged\.json\.xz: not what xz compressed"):
        read_text(file, 10**6, ResultsError)


def test_compressed_bytes_are_no_text_by_themselves(tmp_path: Path) -> None:
    file = tmp_path / "damaged.json.xz"
    file.write_bytes(lzma.compress(b"\xff\xfe"))
    with pytest.raises(ResultsError, match="not UTF-8 text at byte 0"):
        read_text(file, 10**6, ResultsError)
