"""Files of NumPy, and what only looks like one."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from sparsegen.system.numpy_load import load_numpy


def test_arrays_and_archives_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "b.npz", x=np.arange(4))
    assert load_numpy(tmp_path / "a.npy").tolist() == [0, 1, 2]
    with load_numpy(str(tmp_path / "b.npz")) as archive:
        assert archive["x"].tolist() == [0, 1, 2, 3]


def test_a_stream_is_read_from_where_it_stands() -> None:
    stream = io.BytesIO()
    stream.write(b"before")
    np.save(stream, np.arange(3))
    stream.seek(len(b"before"))
    assert load_numpy(stream).tolist() == [0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"text", pickle.dumps([1, 2]), b"\x93NUM"])
def test_what_is_no_file_of_numpy_is_refused_without_advice(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    file.write_bytes(data)
    for given in (file, io.BytesIO(data)):
        with pytest.raises(ValueError, match="neither an array") as raised:
            load_numpy(given)
        assert "pickle" not in str(raised.value)


def test_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="Object arrays"):
        load_numpy(tmp_path / "o.npy")
