"""Bytes of matrix files, good and damaged, and what tests say of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.load import load_matrix

DENSE = np.array([[0, 1.5, 0, -2], [0, 0, 0, 0], [3, 0, 0.25, 0]], dtype=np.float32)

SMTX = b"3, 4, 4\n0 2 2 4\n1 3 0 2\n"

COORDINATE = b"%%MatrixMarket matrix coordinate real general\n% a comment\n3 4 2\n1 2 1.5\n3 1 3\n"

matrices = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7),
    elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -2.5, 1e-30]),
)

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def dense(matrix: CsrMatrix) -> Any:
    return matrix.to_scipy().toarray()


def refused(path: Path, *parts: str, **options: Any) -> None:
    """Loading must fail with an error that names the file and holds every part."""
    with pytest.raises(MatrixError) as caught:
        load_matrix(path, **options)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def npy_bytes(array: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor_entry(array: Any, dtype: str, begin: int = 0) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, begin + array.nbytes]}
