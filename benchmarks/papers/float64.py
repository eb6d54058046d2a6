"""Categories of networks in float64 through all layers, by PyTorch: what exact categories are held against."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegen.networks.model.network import Network

LOOKED = 8  # layers after which inputs that died are left out
PLACES = 1 << 26  # neurons of all inputs that are computed together, 8 bytes each


def live_through_all_layers(network: Network, images: np.ndarray, place: Any) -> np.ndarray:
    """The inputs of a network with ReLU that live behind its last layer: int64, sorted.

    Args:
        images: inputs × neurons before the first layer.
        place: PyTorch's device.
    """
    step = max(1, PLACES // network.neurons)
    return np.concatenate(
        [begin + _live(network, images[begin : begin + step], place) for begin in range(0, len(images), step)]
    )


def _live(network: Network, images: np.ndarray, place: Any) -> np.ndarray:
    import torch

    neurons = torch.from_numpy(images).to(place).double().T.contiguous()
    living = torch.arange(len(images), device=place)
    for number, (layer, bias) in enumerate(zip(network.layers, network.biases, strict=True)):
        parts = (layer.row_offsets, layer.column_indices, layer.values)
        offsets, columns, values = (torch.from_numpy(np.ascontiguousarray(part)).to(place) for part in parts)
        indices = (offsets.long(), columns.long())
        weights = torch.sparse_csr_tensor(*indices, values.double(), layer.shape, check_invariants=False)
        added = torch.from_numpy(np.asarray(bias)).to(place).double()[:, None]
        neurons = (weights @ neurons + added).clamp_(0, network.clip)
        if number % LOOKED == 0 and network.largest_bias <= 0:  # what is zero then stays zero
            alive = neurons.any(dim=0)
            living, neurons = living[alive], neurons[:, alive]
    return np.asarray(living[neurons.any(dim=0)].cpu())
