"""Masks that do not change: each of our implementations, both passes of the layer by two, and what would be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import sparsegen
from benchmarks.attention_checks import Attend, attended, largest_errors
from benchmarks.attention_rows import TOLERANCE, FixedRow, in_turn
from benchmarks.study import WrongResultError
from sparsegen import backends
from sparsegen.attention.choice import AttentionImplementation, Request, decide_blocks, expected_times
from sparsegen.attention.fused import FusedAttentionOperator
from sparsegen.attention.steps import at_once
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import OnMiss
from sparsegen.integrations.torch import SparsePattern, sparse_attention
from sparsegen.integrations.torch.attention import pattern_blocks
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import BlockAttentionBackwardProblem, BlockAttentionProblem, DType
from sparsegen.plan.variants import compile_variant

BLOCKS, FUSED, STEPS = (
    AttentionImplementation.BLOCKS,
    AttentionImplementation.FUSED,
    AttentionImplementation.STEPS,
)


def measured_fixed(row: FixedRow, place: torch.device, seed: int) -> dict[str, Any]:
    """A row's errors, what would be chosen, and on a GPU expected and found times in µs of each implementation.

    Training is a forward and a backward pass of `sparse_attention`. Dense attention by cuDNN, without the mask, is
    timed beside it.
    """
    torch.manual_seed(seed)
    shape = (1, row.heads, row.tokens, row.head_dim)
    given = [torch.randn(shape, device=place, dtype=torch.float16) for _ in range(4)]
    device, matrix = kernel_device(given[0]), row.matrix(seed)
    assert device is not None, "the emulator is asked for by torch_place"
    wanted = asked(row, matrix, device)
    prepared = {name: _operator(row, matrix, device, name) for name in (BLOCKS, FUSED, STEPS)}
    chosen = _operator(row, matrix, device)
    forward = {name: _called(operator) for name, operator in prepared.items()}
    training = {name: _trained(matrix, named=name is BLOCKS) for name in (BLOCKS, STEPS)}
    errors = _errors(forward, training, given, matrix, row)
    by_blocks = pattern_blocks.runs_by_blocks(SparsePattern(matrix), given[0][0], trains=True)
    found = asdict(row) | {
        "live": round(matrix.nnz / row.tokens**2, 4),
        "errors": errors,
        "chosen": {"forward": _name(chosen), "training": str(BLOCKS if by_blocks else STEPS)},
        "why": chosen.decision.why,
        "expected_forward_us": _expected(wanted, trains=False),
        "expected_training_us": _expected(wanted, trains=True),
    }
    if place.type != "cuda":
        return found
    everyone: dict[str, Attend] = {str(name): attend for name, attend in training.items()}
    everyone["cudnn_dense"] = _by_cudnn
    with torch.no_grad():
        passes: dict[str, Callable[[], Any]] = {
            str(name): partial(attend, *given[:3]) for name, attend in forward.items()
        }
        found["forward_us"] = in_turn(passes | {"cudnn_dense": partial(_by_cudnn, *given[:3])})
    found["training_us"] = in_turn({name: partial(attended, each, given) for name, each in everyone.items()})
    return found


def asked(row: FixedRow, matrix: CsrMatrix, device: Device) -> Request:
    """The row as `sparsegen.prepare_attention` decides about it."""
    together = at_once(row.heads, matrix.nnz * DType.FLOAT16.itemsize)
    kind = row.head_dim, DType.FLOAT16, OnMiss.NEAREST, device, None
    return Request(matrix, row.heads, together, *kind)


def compile_fixed(rows: Iterable[tuple[FixedRow, int]], device: Device) -> None:
    """Compile on all cores what some rows run, each with its seed, so that it is found in the cache."""
    with ThreadPoolExecutor() as pool:
        for row, seed in rows:
            for choice in _choices(asked(row, row.matrix(seed), device)):
                pool.submit(compile_variant, choice.config, choice.problem, backends.toolchain(device))


def _choices(wanted: Request) -> Iterator[Choice]:
    """The variants of all implementations, and of the gradients."""
    for kind, trains in ((BlockAttentionProblem, False), (BlockAttentionBackwardProblem, True)):
        blocks = decide_blocks(wanted, is_named=True, trains=trains)
        assert blocks is not None
        problem = blocks.form.problem(kind, wanted.heads, wanted.head_dim, wanted.dtype)
        yield sparsegen.lookup(problem=problem, **wanted.look_up)
    *steps, product = wanted.options(STEPS)
    softmax = {"operator": "sparse_softmax_backward", "dtype": wanted.dtype, "batch": wanted.at_once}
    products = (product, product | {"transpose": True})
    for options in (*wanted.options(FUSED), *steps, softmax, *products):
        yield sparsegen.lookup(wanted.mask, **options, **wanted.look_up)


def _operator(
    row: FixedRow, matrix: CsrMatrix, device: Device, implementation: AttentionImplementation | None = None
) -> Any:
    return sparsegen.prepare_attention(
        matrix,
        heads=row.heads,
        head_dim=row.head_dim,
        dtype=DType.FLOAT16,
        device=device,
        implementation=implementation,
    )


def _name(operator: Any) -> str:
    return str(operator.implementation if isinstance(operator, FusedAttentionOperator) else STEPS)


def _called(operator: Any) -> Attend:
    """Calls with a batch of one."""
    takes_tensors = operator.device.backend == "cuda"

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = q[0], k[0], v[0]
        if takes_tensors:
            out: Tensor = operator(*heads)
            return out[None]
        return torch.from_numpy(operator(*(t.numpy() for t in heads)))[None]

    return attend


def _trained(matrix: CsrMatrix, *, named: bool) -> Attend:
    """`sparse_attention` on a pattern of its own; its first call has gradients, and fixes the implementation."""
    pattern = SparsePattern(matrix)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with _decided(by_blocks=named):
            return sparse_attention(q, k, v, pattern)

    return attend


@contextmanager
def _decided(*, by_blocks: bool) -> Iterator[None]:
    """Patterns whose first call comes now run by blocks, or in steps."""
    decide = partial(decide_blocks, is_named=True) if by_blocks else _no_blocks
    with patch.object(pattern_blocks, "decide_blocks", decide):
        yield


def _no_blocks(wanted: Request, *, trains: bool) -> None:
    """Decides for the other implementations."""


def _expected(wanted: Request, *, trains: bool) -> dict[str, float]:
    return {str(name): round(time.us, 1) for name, time in expected_times(wanted, trains=trains).items()}


def _errors(
    forward: dict[AttentionImplementation, Attend],
    training: dict[AttentionImplementation, Attend],
    given: list[Tensor],
    matrix: CsrMatrix,
    row: FixedRow,
) -> dict[str, float]:
    """The largest error of each over the largest element, of the first and the last head.

    Raises:
        WrongResultError: an error is over the tolerance.
    """
    seen, heads = (
        torch.from_numpy(matrix.to_dense() != 0).to(given[0].device),
        dict.fromkeys((0, row.heads - 1)),
    )
    results = {f"training_{name}": attended(attend, given) for name, attend in training.items()}
    errors = largest_errors(results, given, lambda _: seen, heads, TOLERANCE)
    one = [tensor[:, :1].float() for tensor in given[:3]]
    right = scaled_dot_product_attention(one[0], one[1], one[2], attn_mask=seen)
    for name, attend in forward.items():
        off = (attend(*given[:3])[:, :1].float() - right).abs().max() / right.abs().max()
        errors[str(name)] = float(off)
        if not errors[str(name)] <= TOLERANCE:
            raise WrongResultError(f"{row}, {name}: the error is {float(off):.3g} of the largest element")
    return errors


def _by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v)
