"""Factors of dropped blocks that are drawn ahead are those that are drawn one by one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from call_costs import steps_of  # noqa: E402
from torch import nn  # noqa: E402

from sparsegen.integrations.torch import DropoutLinear  # noqa: E402
from sparsegen.integrations.torch.blocks import dropout_steps, factors_ahead, mask_states  # noqa: E402
from sparsegen.integrations.torch.blocks.factors_ahead import MOST_STEPS, FactorsAhead  # noqa: E402
from sparsegen.integrations.torch.blocks.mask_launches import launch_factors  # noqa: E402
from sparsegen.integrations.torch.calls.devices import kernel_device  # noqa: E402

BLOCK, SEED = (16, 32), 2**63 + 5


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of masks of the launches that were started."""
    found: list[int] = []
    bind = factors_ahead.bind_block_dropout

    def counted(executor: Any, *what: Any) -> Any:
        bound = bind(executor, *what)

        def launch(*given: Any) -> None:
            found.append(what[-1])
            bound(*given)

        return launch

    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(factors_ahead, "bind_block_dropout", counted)
    return found


def ahead_of(x: Any) -> FactorsAhead:
    device = kernel_device(x)
    assert device is not None
    return FactorsAhead(x, device, 0.5, BLOCK)


def test_steps_as_far_apart_as_those_before_are_drawn_at_once(launches: list[int]) -> None:
    x = torch.ones(2, 24, 72)
    ahead, rows = ahead_of(x), x.view(48, 72)
    for number in range(3 + 2 * MOST_STEPS):
        numbers = SEED, 100 + 8 * number
        alone = launch_factors(rows, numbers, 0.5, *BLOCK)(rows, numbers)
        assert torch.equal(ahead(numbers), alone.view(x.shape))
    assert launches == [1, 1, MOST_STEPS, MOST_STEPS, MOST_STEPS]


@pytest.mark.parametrize(
    "numbers", [(SEED, 100), (SEED + 1, 116), (SEED, 120)], ids=["again", "seed", "step"]
)
def test_other_numbers_than_expected(launches: list[int], numbers: tuple[int, int]) -> None:
    x = torch.ones(48, 72)
    ahead = ahead_of(x)
    for step in (100, 104, 108, 112):
        ahead((SEED, step))
    assert launches == [1, 1, MOST_STEPS]
    assert torch.equal(ahead(numbers), launch_factors(x, numbers, 0.5, *BLOCK)(x, numbers))
    # Numbers come again in the backward pass of a checkpoint: what was drawn for them is there or drawn again.
    assert torch.equal(ahead((SEED, 112)), launch_factors(x, (SEED, 112), 0.5, *BLOCK)(x, (SEED, 112)))


def test_another_stream_has_its_own(launches: list[int]) -> None:
    ahead = ahead_of(torch.ones(48, 72))
    for step in (100, 104, 108, 112):
        ahead((SEED, step))
    ahead._stream = lambda: 7
    drawn = []
    ahead._draws = {
        count: (lambda: lambda *given: drawn.append(given[0]), make)
        for count, (_, make) in ahead._draws.items()
    }
    ahead((SEED, 116))
    assert drawn == [7]


def test_the_larger_the_fewer_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch, launches: list[int]) -> None:
    monkeypatch.setattr(factors_ahead, "BYTES", 64 * 64 * 4 * 4 * 4)
    found = {}
    for rows in (4, 16, 64, 128, 512):
        launches.clear()
        ahead = ahead_of(torch.ones(rows, 64))
        for step in range(100, 180, 4):
            ahead((SEED, step))
        found[rows] = launches[2:4]
    assert found == {4: [16, 16], 16: [8, 8], 64: [4, 4], 128: [2, 2], 512: [1, 1]}


class Generator:
    """A GPU's generator as far as its numbers are asked for."""

    offset = 0

    def initial_seed(self) -> int:
        return SEED

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    """Names the masks of layers on the host, as one does on a GPU."""
    made = Generator()
    for module in (mask_states, dropout_steps):
        monkeypatch.setattr(module, "generator_of", lambda _: made)
    monkeypatch.setattr(mask_states, "new_numbers", lambda _: mask_states.numbers_of(made))
    return made


def test_a_layer_s_masks_are_those_of_its_first_call(generator: Generator, launches: list[int]) -> None:
    """Whichever way a call goes, and in whatever order numbers come."""
    layer, x = DropoutLinear(48, 40, 0.5, BLOCK, dense="always"), torch.ones(96, 48, requires_grad=True)
    known = {}
    for offset in (0, 8, 16, 24, 32, 8, 40, 24, 48, 56, 64):
        generator.offset = offset
        y = layer(x)
        found = torch.autograd.grad(y.sum(), (x, layer.weight))
        layer._steps.clear() if offset == 40 else None
        for one, other in zip(found, known.setdefault(offset, found), strict=True):
            assert torch.equal(one, other)
    assert (
        MOST_STEPS in launches and len({gradients[0].numpy().tobytes() for gradients in known.values()}) > 4
    )


def test_a_step_enters_no_more_functions_than_dropout_and_a_linear_layer(
    generator: Generator, launches: list[int]
) -> None:
    """But for three, by which the stand-in for the generator answers in Python."""
    x, dy = torch.ones(96, 48, requires_grad=True), torch.ones(96, 40)
    found = []
    for layer in (
        nn.Sequential(nn.Dropout(0.5), nn.Linear(48, 40)),
        DropoutLinear(48, 40, 0.5, BLOCK, dense="always"),
    ):
        leaves = x, *layer.parameters()
        found.append(
            steps_of(lambda layer=layer, leaves=leaves: torch.autograd.grad(layer(x), leaves, dy), before=4)
        )
    theirs, ours = found
    assert MOST_STEPS in launches
    assert ours.python.total() <= theirs.python.total() + 3, ours
    assert ours.c.total() <= theirs.c.total() + 3, ours
