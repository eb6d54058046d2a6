"""Choice between block-masked and dense products for a linear layer after structured dropout: both are raced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.blocks.block_masks import drop_blocks, mask_of
from sparsegen.integrations.torch.blocks.dropped_blocks import dropped
from sparsegen.integrations.torch.blocks.mask_states import new_state
from sparsegen.integrations.torch.blocks.masked_products import dsd, gradient_launches
from sparsegen.integrations.torch.calls.constant_results import constant_result
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device_of
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.kernels.base import Device
from sparsegen.matrix.block_mask import grid
from sparsegen.matrix.block_mask_draw import MaskDraw
from sparsegen.measure.decision import Entrants, decide
from sparsegen.measure.race import Pair
from sparsegen.operators import Block, Density, DsdProblem, Epilogue, Layout
from sparsegen.tuning_db.records import Called, Task

STEPS = 3  # behind each other, as in training, where the host is ahead of a device that takes longer


@constant_result
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
    dense: str = "auto",
) -> bool:
    """True if a mask and its three products take less time than dropout of blocks and three dense products.

    On a GPU the first call with these sizes races both, forward and backward, unless the tuning database knows; see
    `sparsegen.measure.decision`. It needs memory for some operands besides the layer's own, and leaves PyTorch's
    generators as they are: states are drawn by another one. Both are timed twice: some steps through autograd as the
    host starts them, so that its time counts where the device waits for it, and one by a CUDA graph's launches behind
    other work of the device; the second answer is that of captures. With a seed of the layer's own, the mask of masked
    products is drawn early. Inside a capture nothing can be timed, and sizes that were never met run dense.

    Dense products run without a kernel, and in float32 unless PyTorch may use TF32.

    Args:
        dense: what the caller permits.
    """
    if dense != Dense.AUTO:
        return dense == Dense.NEVER
    if dtype not in DTYPES or tokens * in_features * out_features == 0:
        return False
    if dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return False
    facts = tokens, in_features, out_features, block, p, dtype, has_bias, relu
    kind = masked_products_pay, facts, own_seed, device
    decision: Decision | None = calls.known.get(kind)
    if decision is None:
        where = torch.device(device)
        found = kernel_device_of(where)
        if found is None:
            return False
        problem, task = forward_problem(*facts), Task.SEEDED_DROPOUT if own_seed else Task.DROPOUT
        decision = decide(
            task, problem, found, lambda: _entrants(problem, p, where, found, own_seed=own_seed)
        )
        if decision is None:
            return False
        if where.index is not None:
            calls.known[kind] = decision
    return decision.ours_runs()


def forward_problem(
    tokens: int,
    in_features: int,
    out_features: int,
    block: tuple[int, int],
    p: float,
    dtype: torch.dtype,
    has_bias: bool,
    relu: bool,
) -> DsdProblem:
    """The product of the layer's forward pass, by which a step is known."""
    density = MaskDraw(p).density(grid((tokens, in_features), block))
    epilogue = Epilogue.NONE if not has_bias else Epilogue.BIAS_RELU if relu else Epilogue.BIAS
    return DsdProblem(
        *(tokens, in_features, out_features, DTYPES[dtype], Block.parse(block), Density.parse(density)),
        w_layout=Layout.COLUMN,
        epilogue=epilogue,
    )


def _entrants(
    problem: DsdProblem, p: float, where: torch.device, device: Device, *, own_seed: bool
) -> Entrants:
    with torch.inference_mode(False):
        scale = 1 / MaskDraw(p).density(problem.mask_layout)
        launcher = operators.get(problem, device, scale=scale).launcher
    return Entrants(
        launcher.variant, lambda called: _both(problem, p, where, called, own_seed=own_seed), STEPS
    )


@torch.inference_mode(False)
def _both(problem: DsdProblem, p: float, where: torch.device, called: Called, *, own_seed: bool) -> Pair:
    """A step with masked products beside one with dense products."""
    tokens, ins, outs = problem.m, problem.k, problem.n
    dtype, block = getattr(torch, problem.dtype.value), (problem.block.rows, problem.block.columns)
    relu = problem.epilogue is Epilogue.BIAS_RELU
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
        state[1].add_(1)
        return found

    given, parameter = x.requires_grad_(), weight.requires_grad_()
    bias = None
    if problem.epilogue.has_bias:
        bias = torch.zeros(outs, dtype=dtype, device=where, requires_grad=True)
    all_of = (given, parameter) if bias is None else (given, parameter, bias)
    drop = dropped if called is Called.HOST else drop_in_graph

    def masked() -> None:
        mask = mask_of(named(), (tokens, ins), block, MaskDraw(p), early=own_seed)
        scale = 1 / mask.density
        y = dsd(given, parameter, mask, bias, scale=scale, relu=relu, dense="never")
        if called is Called.HOST:
            torch.autograd.grad(y, all_of, dy)
            return
        taken = torch.where(y.detach() > 0, dy, 0) if relu else dy, x.detach(), weight.detach(), mask.words
        of_mask = scale, *mask.shape, *block, mask.density, "never"
        gradient_launches(*taken, of_mask, (True, True, bias is not None)).in_graph(*taken)

    def dense() -> None:
        y = functional.linear(drop(given, kept(), p, block), parameter, bias)
        torch.autograd.grad(y.relu() if relu else y, all_of, dy)

    return _alone(masked), _alone(dense)


def drop_in_graph(x: Tensor, state: Tensor, p: float, block: tuple[int, int]) -> Tensor:
    """A matrix without the dropped blocks, as `dropped` gives it while a CUDA graph is captured."""
    result: Tensor = drop_blocks(x, state, p, *block)
    return result


def _alone(step: Callable[[], None]) -> Callable[[], None]:
    """The step with gradients, whatever the caller asks for, and unseen by whoever counts what a layer saves."""

    def run() -> None:
        with torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(_as_it_is, _as_it_is):
            step()

    return run


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
