"""Whether a linear layer behind structured dropout runs block-masked products, or dense ones."""

from __future__ import annotations

from functools import cache

import torch

from sparsegen import api
from sparsegen.integrations.torch.masked_prepared import Call, Masked
from sparsegen.integrations.torch.pattern import DTYPES, kernel_device_of
from sparsegen.operators import Layout

DRAW_US = 8.0  # of a mask on an H100, up to 64 × 64 blocks, within a graph
PRODUCTS = 3  # forward, and the gradients of input and weight


@torch.compiler.assume_constant_result
def masked_products_pay(
    tokens: int,
    in_features: int,
    out_features: int,
    block: tuple[int, int],
    p: float,
    dtype: torch.dtype,
    device: str,
) -> bool:
    """Whether a mask and its three products are expected to take less time than dropout and three dense products.

    Times of the products are those that were measured, on these sizes or near ones, else predicted. Where no kernel
    runs, and of float32 unless PyTorch may use TF32, dense ones run. On the emulator, which has no time, the kernels
    do.
    """
    where = torch.device(device)
    if dtype not in DTYPES or tokens * in_features * out_features == 0:
        return False
    if dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return False
    return _pays(tokens, in_features, out_features, block, p, dtype, where)


@cache
def _pays(
    m: int, k: int, n: int, block: tuple[int, int], p: float, dtype: torch.dtype, where: torch.device
) -> bool:
    device = kernel_device_of(where)
    if device is None or device.backend == "emulator":
        return device is not None
    rates, size = device.expected_rates, dtype.itemsize
    flop = {torch.float32: rates.tf32_flop_per_us, torch.float16: rates.float16_flop_per_us}
    product = rates.launch_us + 2.0 * m * k * n / flop.get(dtype, rates.bfloat16_flop_per_us)
    # Dropout reads and writes X and writes its mask of bytes; its gradient reads that and dX, and writes dX.
    passes = 2 * (rates.launch_us + m * k * (2 * size + 1) / rates.copy_bytes_per_us)
    masked, dense = DRAW_US, passes
    for kind in Masked:
        call = Call(kind, m, k, n, block, 1 - p)
        choice = api.lookup(problem=call.problem(DTYPES[dtype], Layout.COLUMN), device=device)
        masked += (choice.expected_us if choice.expected_us is not None else choice.predicted_us) or 0.0
        dense += product if choice.dense_us is None else choice.dense_us
    return masked < dense
