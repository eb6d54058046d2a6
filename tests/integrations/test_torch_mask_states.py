"""States of masks by PyTorch's generators: new ones with every call, the same ones of a seed."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from sparsegen.integrations.torch import DropoutLinear  # noqa: E402
from sparsegen.integrations.torch.blocks import mask_states  # noqa: E402
from sparsegen.integrations.torch.calls.direct import is_rewritten  # noqa: E402


class Generator:
    """A GPU's generator as far as its numbers are asked for."""

    def __init__(self, seed: int) -> None:
        self.seed, self.offset = seed, 0

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        assert offset % mask_states.COUNTED == 0
        self.offset = offset


def test_numbers_differ_from_call_to_call_and_between_seeds() -> None:
    runs = []
    for seed in (0, 2**64 - 1, 0):
        generator = Generator(seed)
        runs.append([mask_states.numbers_of(generator) for _ in range(3)])
    assert runs[0] == runs[2] and not {*runs[0]} & {*runs[1]} and len({*runs[0]}) == 3
    for numbers in runs[0] + runs[1]:
        assert all(0 <= number < 2**64 for number in numbers)


@pytest.mark.parametrize("dense", ["never", "always"])
def test_layers_by_numbers(monkeypatch: pytest.MonkeyPatch, dense: str) -> None:
    """A GPU's generator names masks by numbers: the first call goes the long way, and the others are steps."""
    generator = Generator(2**63 + 5)
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(mask_states, "generator_of", lambda _: generator)
    monkeypatch.setattr(mask_states, "new_numbers", lambda _: mask_states.numbers_of(generator))
    layer, x = DropoutLinear(48, 40, 0.5, "32x16", dense=dense), torch.ones(96, 48, requires_grad=True)
    found = []
    for offset in (40, 40, 40, 44):
        generator.set_offset(offset)
        found.append(torch.autograd.grad(layer(x).sum(), (x, layer.weight)))
        assert generator.offset == offset + mask_states.COUNTED
    for gradients in found[1:3]:
        assert all(torch.equal(one, other) for one, other in zip(gradients, found[0], strict=True))
    assert not torch.equal(found[3][0], found[0][0])


def test_the_host_s_generator_draws_states() -> None:
    place = torch.device("cpu")
    assert mask_states.new_numbers(place) is None
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append([mask_states.new_state(place) for _ in range(2)])
    (first, second), again = states
    assert not torch.equal(first, second) and torch.equal(torch.stack(again), torch.stack([first, second]))


def test_what_rewrites_operators_is_told() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    found = []
    torch.func.vmap(lambda x: found.append(is_rewritten()) or x)(torch.ones(2))
    with TorchDispatchMode():
        found.append(is_rewritten())
    assert found == [True, True] and not is_rewritten()


@pytest.mark.gpu
def test_numbers_and_states_of_a_gpu_are_the_same() -> None:
    """Whichever way a call goes, as a checkpoint's second one may go another; and each mask is new."""
    place = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(2**40 + 1)
    numbers = [mask_states.new_numbers(place) for _ in range(2)]
    drawn = torch.rand(4, device=place)
    torch.manual_seed(2**40 + 1)
    stored = [mask_states.new_state(place).cpu().numpy().view("uint64").tolist() for _ in range(2)]
    assert [list(pair) for pair in numbers] == stored and stored[0] != stored[1]
    assert torch.equal(torch.rand(4, device=place), drawn)
    layers = {
        kind: DropoutLinear(128, 64, 0.5, 64, dense=kind, device=place, dtype=torch.float16)
        for kind in ("never", "always")
    }
    x = torch.ones(256, 128, device=place, dtype=torch.float16, requires_grad=True)
    live = []
    for layer in layers.values():
        for _ in range(3):  # the first one goes the long way
            torch.manual_seed(7)
            live.append(torch.autograd.grad(layer(x).sum(), x)[0] != 0)
        live.append(torch.autograd.grad(layer(x).sum(), x)[0] != 0)
    assert all(torch.equal(one, live[0]) for one in live[:3] + live[4:7])
    assert torch.equal(live[3], live[7]) and not torch.equal(live[3], live[0])
    for layer in layers.values():
        found = []
        for run in (layer, partial(checkpoint, layer, use_reentrant=False)):
            torch.manual_seed(7)
            y = run(x)
            found.append((y, *torch.autograd.grad(y.sum(), (x, layer.weight))))
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
