"""Inputs on the host: bits, bytes and numbers give devices the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.errors import OperandError
from sparsegen.networks.model.chunks import Chunk
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.inputs import BitInputs, ByteInputs, Inputs, NumberInputs, as_inputs
from sparsegen.operators import DType


def written(inputs: Inputs, part: Chunk) -> Any:
    rows = np.empty((part.count, inputs.row_bytes), np.uint8)
    inputs.write(part, rows)
    return rows


def test_bits_and_bytes_and_truth_values_are_the_same_inputs() -> None:
    images = stroke_images(9, 196)
    kinds = [
        as_inputs(images, 196, DType.FLOAT16),
        as_inputs(images != 0, 196, DType.FLOAT16),
        BitInputs.of(images),
    ]
    numbers = np.array([7, 0, 3])
    for kind in kinds:
        assert (kind.count, kind.neurons) == (9, 196)
        assert kind.are_bits
        np.testing.assert_array_equal(
            written(kind, Chunk(1, 2, 3, 6)),
            np.packbits(images[[1, 2, 4, 5, 7, 8]], axis=1, bitorder="little"),
        )
        np.testing.assert_array_equal(kind.some(numbers).values(), images[numbers])
    assert isinstance(kinds[0], ByteInputs)


def test_numbers_are_what_the_dtype_holds() -> None:
    inputs = as_inputs(np.array([[0.1, 70.0], [2.0, 0.0]]), 2, DType.FLOAT16)
    assert isinstance(inputs, NumberInputs)
    rows = written(inputs, Chunk(0, 2, 2, 2)).view(np.float16)
    assert not inputs.are_bits and rows.tolist() == [[np.float16(0.1), 70.0], [2.0, 0.0]]
    assert inputs.values()[0, 0] == np.float16(0.1)
    assert isinstance(as_inputs(np.full((1, 2), 3, np.uint8), 2, DType.FLOAT16), NumberInputs)


def test_what_is_no_input_is_refused() -> None:
    for wrong in (np.zeros((3, 7)), np.zeros((0, 8)), np.zeros(8), BitInputs.of(np.zeros((2, 9)))):
        with pytest.raises(OperandError, match="inputs × 8 neurons"):
            as_inputs(wrong, 8, DType.FLOAT16)
    with pytest.raises(OperandError, match="expected numbers, got"):
        as_inputs(np.full((1, 8), "x"), 8, DType.FLOAT16)
    with pytest.raises(OperandError, match="inputs × 2 for 9 neurons"):
        BitInputs(np.zeros((4, 1), np.uint8), 9)
    wrong = np.zeros((6, 8))
    wrong[3, 5] = 1e6
    with pytest.raises(OperandError, match=r"y\[3, 5\] = 1000000.0: .* float16 holds"):
        written(as_inputs(wrong, 8, DType.FLOAT16), Chunk(1, 1, 2, 3))
