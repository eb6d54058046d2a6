"""Measures sparsegen's attention and PyTorch's side by side, for `benchmarks.attention`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sparsegen
from benchmarks.attention_rivals import Referee, rivals
from benchmarks.common import times_in_turn
from benchmarks.prepared import torch_place, waiting_lead
from sparsegen.attention.choice import Way
from sparsegen.attention.fused import FusedAttentionOperator
from sparsegen.attention.steps import AttentionOperator
from sparsegen.errors import NoVariantError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DType
from sparsegen.plan.executors import shared_executor

Attention = AttentionOperator | FusedAttentionOperator
OURS = "sparsegen"
TOLERANCES = {DType.FLOAT32: 1e-4, DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}  # of the largest result
ROUNDS, SAMPLES = 3, 5


def measured(
    mask: CsrMatrix, heads: int, width: int, dtype: DType, device: Device, db: str
) -> dict[str, Any]:
    """One dtype: each contender's median, error and memory; why others are left out; what ran of ours."""
    place, length = torch_place(device), mask.shape[0]
    generator = torch.Generator().manual_seed(5)
    shape = (heads, length, width)
    q, k, v = (
        torch.randn(shape, generator=generator).to(place, getattr(torch, str(dtype))) for _ in range(3)
    )
    seen = torch.zeros(mask.shape, dtype=torch.bool)
    seen[np.repeat(np.arange(length), np.diff(mask.row_offsets)), np.array(mask.column_indices)] = True
    seen = seen.to(place)
    referee = Referee(q, k, v, seen)
    out = torch.full_like(q, torch.nan)
    gc.collect()
    free = _free_bytes(device)
    asked: dict[str, Any] = {"heads": heads, "width": width, "dtype": dtype, "device": device, "db": db}
    ours = sparsegen.prepare_attention(mask, **asked)
    contenders: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    left_out: dict[str, str] = {}

    def call_into(operator: Attention) -> Callable[[], Tensor]:
        run, addresses = operator.bound(), [t.data_ptr() for t in (q, k, v, out)]

        def call() -> Tensor:
            run(0, *addresses)
            return out

        return call

    def add(name: str, call: Callable[[], Tensor], *, sees_mask: bool, taken: int = 0) -> None:
        found, peak = _with_peak(call, device)
        worst = referee.worst_error(found, sees_mask=sees_mask)
        if not worst <= TOLERANCES[dtype]:
            raise SparsegenError(f"{name} is wrong: its error is {worst:.3g} of the largest result")
        calls[name] = call
        contenders[name] = {
            "sees_mask": sees_mask,
            "error": worst,
            "bytes": None if peak is None else peak + taken,
        }

    chosen = call_into(ours)
    chosen()
    shared_executor(device).synchronize()
    taken = max(0, free - _free_bytes(device)) + out.nbytes
    add(OURS, chosen, sees_mask=True, taken=taken)
    for way in Way:
        if way is ours.decision.way:
            continue
        try:
            out.fill_(torch.nan)
            add(
                f"{OURS}-{way}",
                call_into(sparsegen.prepare_attention(mask, way=way, **asked)),
                sees_mask=True,
                taken=out.nbytes,
            )
        except NoVariantError as error:
            left_out[f"{OURS}-{way}"] = _first_line(error)
    for rival in rivals(seen, compiled=device.backend == "cuda"):
        try:
            attend = rival.make()
            add(rival.name, _call_of(attend, q, k, v), sees_mask=rival.sees_mask)
        except Exception as error:  # PyTorch raises many kinds; what does not run is a line of the result
            left_out[rival.name] = _first_line(error)
            calls.pop(rival.name, None)
        gc.collect()
    executor = shared_executor(device)
    us = times_in_turn(executor, calls, rounds=ROUNDS, samples=SAMPLES, lead=waiting_lead(executor))
    for contender, time_us in us.items():
        contenders[contender]["us"] = round(time_us, 2)
    dense = [us[c] for c, facts in contenders.items() if not facts["sees_mask"]]
    return {
        "dtype": str(dtype),
        "nonzeros": mask.nnz,
        "contenders": contenders,
        "left_out": left_out,
        "to_dense": float(f"{min(dense) / us[OURS]:.4g}") if dense else None,
        "to_flex": float(f"{us['flex'] / us[OURS]:.4g}") if "flex" in us else None,
        "way": str(ours.decision.way),
        "choices": {
            part: {"family": c.family.name, "config": c.config.to_dict(), "how": str(c.how)}
            for part, c in ours.choices.items()
        },
    }


def _call_of(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    return lambda: attend(q, k, v)


def _with_peak(call: Callable[[], Tensor], device: Device) -> tuple[Tensor, int | None]:
    """The result of a second call, and what PyTorch's allocator held at most beside what it held before."""
    with torch.no_grad():
        call()  # compiles, and makes what is kept
        if device.backend != "cuda":
            return call(), None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = call()
        torch.cuda.synchronize()
        return found, torch.cuda.max_memory_allocated() - before


def _free_bytes(device: Device) -> int:
    if device.backend != "cuda":
        return 0
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
