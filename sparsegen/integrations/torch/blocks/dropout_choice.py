"""Whether a linear layer behind structured dropout runs block-masked products, or dense ones: both are tried."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from sparsegen.integrations.torch.blocks.block_masks import drop_blocks, mask_of, new_state
from sparsegen.integrations.torch.blocks.dropped_blocks import dropped
from sparsegen.integrations.torch.blocks.masked_products import dsd
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device_of
from sparsegen.integrations.torch.calls.timing import in_turn
from sparsegen.matrix.block_mask_draw import MaskDraw


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether masked products take less time, of calls by the host and of replays of a CUDA graph."""

    by_host: bool
    in_graph: bool


STEPS = 3  # behind each other, as in training, where the host is ahead of a device that takes longer

_decided: dict[tuple[Any, ...], Choice] = {}
_lock = threading.Lock()


@torch.compiler.assume_constant_result
def masked_products_pay(
    tokens: int,
    in_features: int,
    out_features: int,
    block: tuple[int, int],
    p: float,
    dtype: torch.dtype,
    device: str,
    has_bias: bool = False,
    relu: bool = False,
    own_seed: bool = False,
) -> bool:
    """Whether a mask and its three products take less time than dropout of blocks and three dense products.

    On a GPU the first call with these sizes times both, forward and backward, in turn (`timing.in_turn`), and the
    process remembers the answer. It needs memory for some operands beside the layer's own, and leaves PyTorch's
    generators as they are: states are drawn by another one. Both go through autograd, and are timed twice: some steps
    as the host starts them, so that its time counts where the device waits for it, and one behind other work of the
    device, as in a CUDA graph; the second answer is that of captures. With a seed of the layer's own, the mask of
    masked products is drawn early. Inside a capture nothing can be timed, and sizes that were never met run dense.

    Where no kernel runs, and of float32 unless PyTorch may use TF32, dense products run. On the emulator, which has no
    time, the kernels do.
    """
    where = torch.device(device)
    if dtype not in DTYPES or tokens * in_features * out_features == 0:
        return False
    if dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return False
    found = kernel_device_of(where)
    if found is None or found.backend == "emulator":
        return found is not None
    key = tokens, in_features, out_features, block, p, dtype, where, has_bias, relu, own_seed
    captures = torch.cuda.is_current_stream_capturing()
    with _lock:
        if key not in _decided:
            if captures:
                return False
            with torch.inference_mode(False):
                sizes = tokens, in_features, out_features
                _decided[key] = _tried(
                    sizes, block, p, dtype, where, has_bias=has_bias, relu=relu, own_seed=own_seed
                )
        return _decided[key].in_graph if captures else _decided[key].by_host


def choices() -> list[Choice]:
    """What was decided in this process, one for each problem that was tried."""
    with _lock:
        return list(_decided.values())


def _tried(
    sizes: tuple[int, int, int],
    block: tuple[int, int],
    p: float,
    dtype: torch.dtype,
    where: torch.device,
    *,
    has_bias: bool,
    relu: bool,
    own_seed: bool,
) -> Choice:
    """A step with masked products beside one with dense products."""
    tokens, ins, outs = sizes
    generator = torch.Generator(where)
    generator.manual_seed(0)
    x, weight, dy = (
        torch.randn(shape, dtype=dtype, device=where, generator=generator)
        for shape in ((tokens, ins), (outs, ins), (tokens, outs))
    )
    state = torch.zeros(2, dtype=torch.int64, device=where)

    # States as a layer has them for each call, by as many kernels.
    def named() -> Tensor:
        return state if own_seed else new_state(where, generator)

    def kept() -> Tensor:
        if not own_seed:
            return new_state(where, generator)
        found = state.clone()
        state[1] += 1
        return found

    given, parameter = x.requires_grad_(), weight.requires_grad_()
    bias = torch.zeros(outs, dtype=dtype, device=where, requires_grad=True) if has_bias else None
    all_of = (given, parameter) if bias is None else (given, parameter, bias)

    def masked() -> None:
        mask = mask_of(named(), (tokens, ins), block, MaskDraw(p), early=own_seed)
        y = dsd(given, parameter, mask, bias, scale=1 / mask.density, relu=relu)
        torch.autograd.grad(y, all_of, dy)

    def dense() -> None:
        y = functional.linear(dropped(given, kept(), p, block), parameter, bias)
        torch.autograd.grad(y, all_of, dy)

    def dense_in_graph() -> None:
        y = functional.linear(drop_blocks(given, kept(), p, *block), parameter, bias)
        torch.autograd.grad(y, all_of, dy)

    with saved_tensors_hooks(_as_it_is, _as_it_is):  # whose layer this is may count what it saves
        host = in_turn([_steps(masked, STEPS), _steps(dense, STEPS)], where)
        graph = in_turn([_steps(masked, 1), _steps(dense_in_graph, 1)], where, is_ahead=True)
    return Choice(host[0] < host[1], graph[0] < graph[1])


def _steps(step: Callable[[], None], count: int) -> Callable[[], None]:
    def run() -> None:
        with torch.enable_grad():
            for _ in range(count):
                step()

    return run


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
