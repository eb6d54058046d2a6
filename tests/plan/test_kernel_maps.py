"""Kernel maps: by their definition on the host, and the host's bits on devices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparsegen.backends.executor import Executor
from sparsegen.errors import MatrixError
from sparsegen.matrix.kernel_map import kernel_map
from sparsegen.plan.kernel_maps import KernelMapShape, bind_kernel_map
from sparsegen.system.numpy_types import Array

LARGEST = np.iinfo(np.int32).max
SIZES = [((3, 3, 3), (1, 1, 1)), ((1, 1, 1), (1, 1, 1)), ((5, 1, 3), (1, 2, 3)), ((7, 7, 3), (1, 1, 1))]


def clouds() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    random = rng.integers(-6, 6, (1500, 4))
    random[:, 0] = rng.integers(0, 3, 1500)  # with points that are equal
    padded = random.copy()
    padded[::7, 0] = -1
    edges = np.array([[0, LARGEST, 0, 0], [0, -LARGEST - 1, 0, 0], [0, LARGEST - 1, 0, 0]])
    row = np.zeros((300, 4), int)
    row[:, 3] = np.arange(300)[::-1]
    return {
        name: cloud.astype(np.int32)
        for name, cloud in {"random": random, "padded": padded, "edges": edges, "row": row}.items()
    } | {"one": np.zeros((1, 4), np.int32), "none": np.full((5, 4), -1, np.int32)}


def by_definition(
    coordinates: Array, size: tuple[int, ...], dilation: tuple[int, ...]
) -> dict[int, list[int]]:
    """Returns the points that the taps of each point read, by a dictionary of the points."""
    points: dict[tuple[int, ...], int] = {}
    for number, cell in enumerate(coordinates.tolist()):
        if cell[0] >= 0:
            points.setdefault(tuple(cell), number)
    taps = list(itertools.product(*(range(-(side // 2), side // 2 + 1) for side in size)))
    steps = [[offset * step for offset, step in zip(tap, dilation, strict=True)] for tap in taps]
    return {
        number: [
            points.get((b, z + step[0], y + step[1], x + step[2]), -1) if b >= 0 else -1 for step in steps
        ]
        for number, (b, z, y, x) in enumerate(coordinates.tolist())
    }


@pytest.mark.parametrize(("size", "dilation"), SIZES, ids=str)
@pytest.mark.parametrize("name", clouds())
def test_maps_are_what_they_are_defined_as(
    name: str, size: tuple[int, ...], dilation: tuple[int, ...]
) -> None:
    coordinates = clouds()[name]
    found = kernel_map(coordinates, size, dilation)
    assert sorted(found[0].tolist()) == list(range(len(coordinates)))
    expected = by_definition(coordinates, size, dilation)
    assert {
        int(number): read.tolist() for number, read in zip(found[0], found[1:].T, strict=True)
    } == expected


@pytest.mark.parametrize(("size", "dilation"), SIZES, ids=str)
@pytest.mark.parametrize("name", clouds())
def test_devices_make_the_same_bits(
    executor: Executor, name: str, size: tuple[int, int, int], dilation: tuple[int, int, int]
) -> None:
    coordinates = clouds()[name]
    shape = KernelMapShape(len(coordinates), size, dilation)
    given, scratch = executor.upload(coordinates), executor.allocate(shape.scratch_bytes)
    expected = kernel_map(coordinates, size, dilation)
    made = executor.allocate(expected.nbytes)
    bound = bind_kernel_map(executor, shape)
    for byte in (0xFF, 0x5A):  # whatever was there before
        executor.fill(scratch, byte)
        executor.fill(made, byte)
        bound(0, given.address, scratch.address, made.address)
        found = np.empty_like(expected)
        executor.synchronize()
        executor.download(made, found)
        np.testing.assert_array_equal(found, expected)


def test_points_with_the_same_live_rows_stand_side_by_side() -> None:
    coordinates = clouds()["random"]
    found = kernel_map(coordinates)
    rows = (found[1:] >= 0).reshape(9, 3, -1).any(axis=1)
    keys = (rows << np.arange(9)[:, None]).sum(axis=0)
    assert (np.diff(keys) <= 0).all() and len(set(keys.tolist())) > 20


def test_what_is_no_list_of_points_is_refused() -> None:
    good = np.zeros((3, 4), np.int32)
    with pytest.raises(MatrixError, match="expected int32, points × 4"):
        kernel_map(good.astype(np.int64))
    with pytest.raises(MatrixError, match="expected int32, points × 4"):
        kernel_map(good[:, :3])
    with pytest.raises(MatrixError, match="0 points are outside"):
        kernel_map(good[:0])
    with pytest.raises(MatrixError, match="filters have a middle tap"):
        kernel_map(good, 2)
    with pytest.raises(MatrixError, match="dilation = 0 is below 1"):
        kernel_map(good, 3, 0)
    far = np.array([[0, 0, 0, 0], [0, LARGEST, LARGEST, LARGEST]], np.int32)
    with pytest.raises(MatrixError, match="too many to number on the host"):
        kernel_map(far)
