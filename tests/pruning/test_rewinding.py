"""Learning-rate rewinding: its schedule, and zeros that stay while dense layers train."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import sparsegen
from sparsegen.errors import PruningError


def test_one_step_trains_all_epochs_again() -> None:
    # Muralidharan, MLSys 2023, section 2.2: "we set K = T", and "a single rewinding step with fixed masks".
    (only,) = sparsegen.rewinding_rounds(0.8, 90)
    assert only.sparsity == 0.8 and only.epochs == range(90)


def test_iterative_rounds_prune_an_equal_share_of_what_is_left() -> None:
    rounds = sparsegen.rewinding_rounds(0.9, 10, retrained=4, rounds=3)
    left = [1.0, *(1 - one.sparsity for one in rounds)]
    shares = [after / before for before, after in itertools.pairwise(left)]
    assert shares == pytest.approx([0.1 ** (1 / 3)] * 3)
    assert rounds[-1].sparsity == 0.9 and {one.epochs for one in rounds} == {range(6, 10)}


@pytest.mark.parametrize(
    "given",
    [
        {"sparsity": 1.0, "epochs": 3},
        {"sparsity": 0.0, "epochs": 3},
        {"sparsity": 0.5, "epochs": 0},
        {"sparsity": 0.5, "epochs": 3, "retrained": 4},
        {"sparsity": 0.5, "epochs": 3, "rounds": 0},
    ],
)
def test_what_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(PruningError):
        sparsegen.rewinding_rounds(**given)


def test_zeros_stay_until_they_are_released() -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.integrations.torch import hold_zeros

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def steps() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 8)).square().sum().backward()
            optimizer.step()

    with pytest.raises(PruningError, match="prune it first"):
        hold_zeros(model, optimizer)
    steps()  # Adam has moments of every weight before it is pruned
    model.load_state_dict(sparsegen.prune(model.state_dict(), sparsity=0.5).weights)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    handle = hold_zeros(model, optimizer, exclude=["2.*"])
    steps()
    for name, parameter in model.named_parameters():
        zeros = before[name] == 0
        assert (parameter[~zeros] != before[name][~zeros]).any()
        if name == "0.weight":
            assert zeros.any() and (parameter[zeros] == 0).all()
    assert (model[2].weight != 0).all()  # which was left out
    handle.remove()
    steps()
    assert (model[0].weight != 0).all()
