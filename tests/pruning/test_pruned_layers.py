"""Selection of a model's matrices that count as pruned."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.errors import PruningError
from sparsegen.matrix.formats import as_csr
from sparsegen.pruning.pruned_layers import matrix_of, pruned_layers
from sparsegen.pruning.weights import NumpyWeights
from sparsegen.system.numpy_types import Array


def weight(m: int, k: int, sparsity: float, seed: int = 0) -> Array:
    """Exactly this share of zeros."""
    values = np.ones(m * k, dtype=np.float32)
    values[: round(m * k * sparsity)] = 0
    return np.random.default_rng(seed).permutation(values).reshape(m, k)


MODEL = {
    "half": weight(8, 16, 0.5),
    "most": weight(8, 16, 0.75),
    "few": weight(8, 16, 0.25),
    "none": np.zeros((4, 4), dtype=np.float32),
    "empty": np.zeros((0, 4), dtype=np.float32),
    "convolution": np.zeros((2, 2, 3, 3), dtype=np.float32),
    "bias": np.zeros(8, dtype=np.float32),
    "numbers": np.zeros((4, 4), dtype=np.int64),
}


def test_matrices_with_enough_zeros_and_why_not_the_others() -> None:
    weights = NumpyWeights(MODEL)
    found = pruned_layers(weights)
    assert [(layer.name, layer.sparsity) for layer in found.layers] == [("half", 0.5), ("most", 0.75)]
    assert {other.name: other.reason for other in found.others} == {
        "few": "25.0% zeros",
        "none": "no weight is left",
        "empty": "no weight is left",
        "convolution": "4-D",
        "bias": "1-D",
        "numbers": "elements of int64",
    }
    matrix = matrix_of(weights, found.layers[1])
    assert found.layers[1].fingerprint == matrix.fingerprint() == as_csr(MODEL["most"]).fingerprint()
    assert found.layers[1].to_dict()["nonzeros"] == 32


def test_the_rule_is_the_users() -> None:
    weights = NumpyWeights(MODEL)
    assert [x.name for x in pruned_layers(weights, least_sparsity=0.2).layers] == ["half", "most", "few"]
    assert [x.name for x in pruned_layers(weights, exclude=["h*"]).layers] == ["most"]
    only = pruned_layers(weights, tensors=["half"])
    assert [x.name for x in only.layers] == ["half"] and only.others[0].name == "most"
    told: list[tuple[str, int, int]] = []
    pruned_layers(weights, tensors=["half", "most"], reading=lambda *said: told.append(said))
    assert told == [("half", 1, 2), ("most", 2, 2)]


def test_no_pruned_layer_is_told_with_what_there_is() -> None:
    with pytest.raises(
        PruningError, match=r"no pruned layer, a matrix with at least 90% zeros: half \(50.0% zeros\)"
    ):
        pruned_layers(NumpyWeights(MODEL), least_sparsity=0.9)
    with pytest.raises(PruningError, match="matches none"):
        pruned_layers(NumpyWeights(MODEL), tensors=["nonesuch"])
    with pytest.raises(PruningError, match=r"lies in \[0, 1\]"):
        pruned_layers(NumpyWeights(MODEL), least_sparsity=1.5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_layer_with_a_weight_that_is_no_number_keeps_no_other_one_out(value: float) -> None:
    broken = weight(8, 16, 0.5)
    broken[broken != 0] = value
    found = pruned_layers(NumpyWeights({"w": broken, "whole": weight(8, 16, 0.5)}))
    assert [layer.name for layer in found.layers] == ["whole"]
    assert [(o.name, o.reason) for o in found.others] == [("w", "NaN or infinity among its weights")]
    with pytest.raises(PruningError, match=r"no pruned layer.*w \(NaN or infinity"):
        pruned_layers(NumpyWeights({"w": broken}))
