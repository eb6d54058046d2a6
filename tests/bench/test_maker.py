"""Parcels made ahead: in order, shared where patterns are, deleted when done."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from bench_fakes import DEVICE, cases

from sparsegen.bench.contender.parcel import ParcelMaker, parcel_folder
from sparsegen.bench.run.maker import ParcelQueue, SetUp
from sparsegen.operators import DType


def test_rows_come_in_order_and_share_their_pattern(tmp_path: Path) -> None:
    rows = [(case, dtype) for case in cases(3) for dtype in (DType.FLOAT32, DType.BFLOAT16)]
    with closing(ParcelQueue(rows, SetUp(tmp_path, DEVICE, (), None))) as queue:
        parcels = [queue.next() for _ in rows]
        assert [p.problem for p in parcels] == [case.in_dtype(dtype) for case, dtype in rows]
        assert len({p.pattern for p in parcels}) == 1
        for index, parcel in enumerate(parcels):
            assert parcel.pattern.exists()
            queue.discard(index, parcel)
            assert not parcel.folder.exists()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", DType)
def test_a_parcel_holds_the_case_s_matrix(dtype: DType, tmp_path: Path) -> None:
    case = cases(1)[0]
    parcel = ParcelMaker(tmp_path).make(case, dtype)
    matrix, original = parcel.matrix(), case.matrix()
    assert matrix.fingerprint() == original.fingerprint() == parcel.fingerprint
    rounded = dtype.from_storage(dtype.to_storage(original.values)).astype(np.float32)
    np.testing.assert_array_equal(matrix.values, rounded)
    np.testing.assert_array_equal(parcel.encoded(), dtype.to_storage(original.values))
    assert parcel.operand("b").shape == (24, 1) and parcel.operand("b").dtype == dtype.storage


def test_the_folder_is_gone_at_the_end() -> None:
    with parcel_folder() as folder:
        (folder / "x").write_text("")
    assert not folder.exists()
