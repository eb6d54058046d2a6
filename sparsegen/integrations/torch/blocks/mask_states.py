"""States that name masks, a seed and a step each, by PyTorch's generators.

On a GPU an eager call has both from the generator without a kernel: its seed, and the offset that PyTorch's own random
kernels count on. Calls that are traced or captured have PyTorch draw them on the device, as have those on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import is_rewritten
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, current_stream, stream_of
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.block_dropout import bind_store_state
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.own_launch import OwnBinding

# Added to an offset; PyTorch's are multiples of it.
COUNTED = 4
# Differs our words from those of PyTorch's kernels, which have the same seed for their key: digits of the golden ratio.
OWN = 0x9E3779B97F4A7C15

_HIGHEST = 2**63 - 1
_store = PlainLaunches(bind_store_state)

Numbers = tuple[int, int]  # a seed and a step
Named: TypeAlias = Tensor | Numbers  # a state on the device, or what is in it


def new_state(device: torch.device | str | None = None, generator: torch.Generator | None = None) -> Tensor:
    """A seed and a step by PyTorch's generator of a device, or by another one, on the device."""
    if generator is None and isinstance(device, torch.device):
        numbers = new_numbers(device)
        if numbers is not None:
            state = torch.empty(2, dtype=torch.int64, device=device)
            where = kernel_device_of(device)
            assert where is not None
            _store.of(where)(stream_of(state), *numbers, state.data_ptr())
            return state
    return torch.randint(_HIGHEST, (2,), dtype=torch.int64, device=device, generator=generator)


def states_like(x: Tensor) -> Callable[[], Tensor]:
    """The function of `new_state` for calls with such a tensor that are neither traced nor captured."""
    generator, where = generator_of(x.device), kernel_device_of(x.device)
    if generator is None or where is None:
        return partial(new_state, x.device)
    bound, stream = OwnBinding(shared_executor(where), bind_store_state).bound, current_stream(x)
    empty = empty_tensors(torch, (2,), torch.int64, x.device)

    def new() -> Tensor:
        state: Tensor = empty()
        bound()(stream(), *numbers_of(generator), state.data_ptr())
        return state

    return new


def names_like(x: Tensor) -> Callable[[], Named]:
    """The same, of the numbers alone where there are some, which no launch stores."""
    generator = generator_of(x.device)
    return partial(new_state, x.device) if generator is None else partial(numbers_of, generator)


def new_numbers(device: torch.device) -> Numbers | None:
    """The numbers that `new_state` stores; None where the generator is to draw them on the device."""
    if device.type != "cuda" or is_rewritten() or torch.cuda.is_current_stream_capturing():
        return None
    generator = generator_of(device)
    return None if generator is None else numbers_of(generator)


def generator_of(device: torch.device) -> torch.Generator | None:
    """PyTorch's generator of a GPU with sparsegen's kernels, which gives `numbers_of`; None of any other device."""
    if device.type != "cuda" or kernel_device_of(device) is None:
        return None
    if not torch.cuda.default_generators:
        torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[index]
    return found


def numbers_of(generator: torch.Generator) -> Numbers:
    """A seed and a step that no earlier call had since the generator was seeded."""
    step = generator.get_offset()
    generator.set_offset(step + COUNTED)
    return generator.initial_seed() ^ OWN, step
