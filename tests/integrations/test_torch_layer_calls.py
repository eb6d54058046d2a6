"""Layers as they are called by mistake: with no tensor, on the meta device, with nothing in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsegen.errors import MatrixError, OperandError

torch = pytest.importorskip("torch")
integration = pytest.importorskip("sparsegen.integrations.torch")

Called = Callable[[Any, Any], Any]


def live(x: Any) -> Any:
    return torch.ones(x.shape[0], 2, 2, dtype=torch.bool, device=x.device)


def images() -> Any:
    return torch.randn(2, 4, 16, 16)


def features() -> Any:
    return torch.randn(3, 8)


def sourced() -> Any:
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3, padding=1))
    integration.convert_convolutions(model, integration.MaskSource(block=8))
    return model


CELLS = torch.arange(5, dtype=torch.int32)[:, None] * torch.tensor([[0, 0, 0, 1]], dtype=torch.int32)
MASK = torch.ones(2, 2, 2, dtype=torch.bool)
# Name -> the layer, its call with x, a right x.
LAYERS: dict[str, tuple[Callable[[], Any], Called, Callable[[], Any]]] = {
    "SparseLinear": (
        lambda: integration.SparseLinear.from_dense(torch.nn.Linear(8, 6), sparsity=0.5),
        lambda layer, x: layer(x),
        features,
    ),
    "DropoutLinear": (
        lambda: integration.DropoutLinear(8, 6, p=0.5, block=16),
        lambda layer, x: layer(x),
        features,
    ),
    "SparseConv2d": (
        lambda: integration.SparseConv2d.from_dense(torch.nn.Conv2d(4, 6, 3, padding=1), sparsity=0.5),
        lambda layer, x: layer(x),
        images,
    ),
    "MaskedConv2d": (
        lambda: integration.MaskedConv2d(4, 6, 3, padding=1, mask_block=8),
        lambda layer, x: layer(x, live(x) if isinstance(x, torch.Tensor) else MASK),
        images,
    ),
    "SourcedConv2d": (sourced, lambda layer, x: layer(x), images),
    "MaskedSequential": (
        lambda: integration.masked_sequential(torch.nn.Conv2d(4, 6, 3, padding=1), mask_block=8),
        lambda layer, x: layer(x, MASK)[0],
        images,
    ),
    "SubmanifoldConv3d": (
        lambda: integration.SubmanifoldConv3d(8, 6),
        lambda layer, x: layer(x, integration.KernelMap.of(CELLS)),
        lambda: torch.randn(5, 8),
    ),
    "SparseAttention": (
        lambda: integration.SparseAttention(torch.ones(4, 4), 2, 8),
        lambda layer, x: layer(x, x, x),
        lambda: torch.randn(3, 2, 4, 8),
    ),
}
TAKE_NOTHING = LAYERS.keys() - {
    "SubmanifoldConv3d",
    "MaskedSequential",
}  # points and masks say how many there are


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_no_tensor_is_a_typed_error(name: str) -> None:
    make, call, right = LAYERS[name]
    layer = make()
    call(layer, right())
    for wrong in (right().numpy(), None, [1.0], "x", 7):
        with pytest.raises(OperandError, match=r"expected a torch.Tensor"):
            call(layer, wrong)


@pytest.mark.parametrize("name", sorted(TAKE_NOTHING))
def test_nothing_gives_nothing(name: str) -> None:
    make, call, right = LAYERS[name]
    layer, x = make(), right()
    y = call(layer, x[:0].requires_grad_())
    assert y.shape == (0, *call(layer, x).shape[1:])
    y.sum().backward()


@pytest.mark.parametrize("name", ["SparseLinear", "DropoutLinear", "SparseConv2d", "MaskedConv2d"])
def test_meta_tensors_tell_the_shape(name: str) -> None:
    make, call, right = LAYERS[name]
    layer, x = make(), right()
    y = call(layer.eval().to("meta"), x.to("meta"))
    assert y.is_meta and y.shape == call(make(), x).shape


def test_a_source_refuses_masks_of_other_images() -> None:
    source = integration.MaskSource(block=8)
    with pytest.raises(MatrixError, match="16 × 16 pixels in blocks of 8 × 8 are 2 × 2 blocks, got 2 × 1"):
        source.set(torch.ones(1, 2, 1, dtype=torch.bool), (16, 16))
    assert source.at((16, 16)) is None


def test_a_converted_network_refuses_other_images_than_the_mask_is_of() -> None:
    source, model = integration.MaskSource(block=8), torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3, padding=1))
    integration.convert_convolutions(model, source)
    source.set(MASK, (16, 16))
    np.testing.assert_array_equal(model(images()).shape, (2, 6, 16, 16))
    with pytest.raises(OperandError, match=r"mask: expected \(3, 2, 2\) blocks of 8x8, got \(2, 2, 2\)"):
        model(torch.randn(3, 4, 16, 16))
