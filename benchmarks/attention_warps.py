"""Kernels of single warps, as GPUs before Hopper run them, beside those of warpgroups and PyTorch's flash attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention_checks import largest_errors
from benchmarks.attention_passes import Launches
from benchmarks.attention_rows import TOLERANCE, WarpRow, gradients, in_turn
from sparsegen.integrations.torch import BlockMaskTensor
from sparsegen.integrations.torch.calls.devices import kernel_device

FORWARD, BACKWARD = "mma_attention", "mma_attention_backward"


def measured_warps(
    row: WarpRow, given: list[Tensor], mask: BlockMaskTensor | None, seen: Callable[[int], Tensor]
) -> dict[str, Any]:
    """A row's errors and, on a GPU, its times in µs, of kernels launched alone.

    Flash attention computes what no mask leaves out.

    Args:
        given: Q, K, V and the gradient by O, 1 × heads × tokens × head_dim, in float16.
        mask: one for each head; None where nothing is dead.
        seen: queries × keys of bool, by a head's number.
    """
    launches, device = Launches.of(given, mask), kernel_device(given[0])
    assert device is not None, "the emulator is asked for by torch_place"
    attention, results = launches.row, {}
    configs = {"mma": attention.usual(device, FORWARD), "tma": attention.usual(device)}
    back = {"mma": attention.usual(device, BACKWARD)}
    back |= {f"tma_{name}": config for name, config in attention.passes().items()}
    forward = {name: launches.forward(config) for name, config in configs.items()}
    backward = {name: launches.backward(config) for name, config in back.items()}
    for name, call in backward.items():
        launches.results()
        forward[name.partition("_")[0]]()
        call()
        results[name] = launches.results()
    live = 1.0 if mask is None else float(mask.blocks().float().mean())
    found = asdict(row) | {
        "live": round(live, 4),
        "configs": {name: config.settings for name, config in (configs | {BACKWARD: back["mma"]}).items()},
        "errors": largest_errors(results, given, seen, dict.fromkeys((0, row.heads - 1)), TOLERANCE),
    }
    if not given[0].is_cuda:
        return found
    forward["tma"]()  # O and the log-sum-exp that all gradients read
    with torch.no_grad():
        found["forward_us"] = in_turn(forward | {"flash_dense": partial(by_flash, *given[:3])})
    found["backward_us"] = in_turn(backward | {"flash_dense": gradients(by_flash, given)})
    return found


def by_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v)
