"""Layers refuse wrong arguments in our own words, whatever PyTorch would say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sparsegen.errors import MatrixError, OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    DropoutLinear,
    KernelMap,
    MaskedConv2d,
    SparseLinear,
    load,
    masks,
)
from sparsegen.masks import BlockMask  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_emulator")
LAYERS: dict[str, Callable[[], Any]] = {
    "DropoutLinear": lambda: DropoutLinear(32, 16),
    "SparseLinear": lambda: SparseLinear.from_dense(torch.nn.Linear(32, 16)),
    "MaskedConv2d": lambda: MaskedConv2d(16, 16, 3, padding=1),
}


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_inputs_are_named(name: str, layout: str) -> None:
    given = getattr(torch.ones(8, 32), layout)()
    with pytest.raises(OperandError, match=r"expected a dense tensor, got torch.sparse_.*to_dense"):
        LAYERS[name]()(given)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, "float32", 7])
def test_parameters_are_floating_point_numbers(dtype: Any) -> None:
    with pytest.raises(OperandError, match=r"no torch\.dtype|floating-point numbers"):
        DropoutLinear(32, 16, dtype=dtype)


@pytest.mark.parametrize("shape", [(), (3,), (16, 16), (1, 1, 16, 8, 8)])
@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 1)])
def test_images_have_three_or_four_dimensions(shape: tuple[int, ...], mask: Any) -> None:
    with pytest.raises(OperandError, match="images × channels × rows × columns"):
        LAYERS["MaskedConv2d"]()(torch.zeros(shape), mask)


def test_a_map_of_points_that_are_nowhere_is_nowhere() -> None:
    coordinates = torch.zeros(5, 4, dtype=torch.int32, device="meta")
    assert KernelMap.of(coordinates, 3).words.is_meta


@pytest.mark.parametrize(
    "least",
    [torch.ones(3), torch.ones(5, 1, 1, 1), torch.ones(1, device="meta"), torch.ones(2, 2).to_sparse()],
)
def test_thresholds_broadcast_to_scores(least: Any) -> None:
    scores = torch.ones(1, 2, 2)
    with pytest.raises(OperandError, match="least: expected"):
        masks.threshold_blocks(scores, least, 16, (32, 32))
    assert masks.threshold_blocks(scores, torch.ones(2, 1), 16, (32, 32)).blocks().all()


def test_numpy_masks_of_tensors_that_numpy_lacks() -> None:
    with pytest.raises(MatrixError, match="no array"):
        BlockMask.from_blocks(torch.ones(2, 2, dtype=torch.bfloat16), 16)


def test_names_and_devices_that_are_none() -> None:
    with pytest.raises(OperandError, match="no device"):
        DropoutLinear(4, 4, device=10**30)
    with pytest.raises(OperandError, match="names for keys"):
        load(nn.Sequential(nn.Linear(4, 4)), {1: torch.ones(2)})
