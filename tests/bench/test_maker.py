"""Inputs made ahead: in order, shared where patterns are, deleted when done."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from bench_fakes import DEVICE, cases

from sparsegen.bench.baseline.inputs import InputsMaker, inputs_folder
from sparsegen.bench.run.maker import InputsQueue, SetUp
from sparsegen.operators import DType


def test_rows_come_in_order_and_share_their_pattern(tmp_path: Path) -> None:
    rows = [(case, dtype) for case in cases(3) for dtype in (DType.FLOAT32, DType.BFLOAT16)]
    with closing(InputsQueue(rows, SetUp(tmp_path, DEVICE, (), None))) as queue:
        made = [queue.next() for _ in rows]
        assert [p.problem for p in made] == [case.in_dtype(dtype) for case, dtype in rows]
        assert len({p.pattern for p in made}) == 1
        for index, inputs in enumerate(made):
            assert inputs.pattern.exists()
            queue.discard(index, inputs)
            assert not inputs.folder.exists()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", DType)
def test_inputs_hold_the_case_s_matrix(dtype: DType, tmp_path: Path) -> None:
    case = cases(1)[0]
    inputs = InputsMaker(tmp_path).make(case, dtype)
    matrix, original = inputs.matrix(), case.matrix()
    assert matrix.fingerprint() == original.fingerprint() == inputs.fingerprint
    rounded = dtype.from_storage(dtype.to_storage(original.values)).astype(np.float32)
    np.testing.assert_array_equal(matrix.values, rounded)
    np.testing.assert_array_equal(inputs.encoded(), dtype.to_storage(original.values))
    assert inputs.operand("b").shape == (24, 1) and inputs.operand("b").dtype == dtype.storage


def test_the_folder_is_gone_at_the_end() -> None:
    with inputs_folder() as folder:
        (folder / "x").write_text("")
    assert not folder.exists()
