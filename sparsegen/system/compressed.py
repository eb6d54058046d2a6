"""Text files that xz compresses: those whose names end in ``.xz``."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".xz"


def is_compressed(path: Path) -> bool:
    """Tell by its name whether a file is compressed."""
    return path.suffix == SUFFIX


def compress(text: str) -> bytes:
    """Return UTF-8 text as xz; equal text makes equal bytes."""
    import lzma  # commands that meet no compressed file start without it

    preset = 9 | lzma.PRESET_EXTREME
    data = text.encode("utf-8", "backslashreplace")
    return lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=preset)


def decompress(data: bytes, largest: int) -> bytes:
    """Return what xz compressed.

    Args:
        largest: bytes that the result may have.

    Raises:
        ValueError: the data is cut short or damaged, is no xz, has something behind it, or is of more bytes.
    """
    import lzma

    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    try:
        found = reader.decompress(data, max_length=largest + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"not what xz compressed: {error}") from None
    if len(found) > largest:
        raise ValueError(f"decompressed it has more than {largest} bytes")
    if not reader.eof or reader.unused_data:
        raise ValueError("not what xz compressed: it is cut short, or something stands behind it")
    return found
