"""`paged_attention` on several multiprocessors: pairs of as many tiles have blocks of their own, others share them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.operators import PagedAttentionProblem
from sparsegen.render import render
from sparsegen.system.numpy_types import Array
from sparsegen.testing.launches import call
from sparsegen.verify.bounds import worst_error

FAMILY = family("paged_attention")


ROOM = 8 * 32 + 16 * 2  # floats of a part: sums of 8 rows, and statistics of 16


def run_on(blocks: int, lengths: list[int], teams: int, toolchain: EmulatorToolchain) -> Array:
    """Holds two runs on one scratch memory against the reference; returns for each block which of its rooms it used."""
    cache = {"kv_heads": 2, "group": 4, "head_dim": 32, "dtype": "float16", "page": 16, "chosen": "all"}
    problem = PagedAttentionProblem.of((1, max(lengths)), **cache, batch=len(lengths))
    config, nobody = FAMILY.config(tile=16, stages=1 + teams, teams=teams), problem.without_pattern
    kernel = toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, render(FAMILY, problem, config))
    operands = problem.random_operands(np.random.default_rng(0), 0)
    operands["lengths"] = np.array(lengths, np.int32).reshape(operands["lengths"].shape)
    prepared = call(FAMILY, problem, config, FAMILY.pack(problem, config, nobody), operands, 0)
    launch = replace(prepared.launch, grid=(blocks, 1, 1))
    first = run_sanitized(kernel.binary, launch, prepared.arguments)
    second = run_sanitized(kernel.binary, launch, prepared.again(first).arguments)
    exact = problem.reference(nobody, operands)
    for found in (first, second):
        assert worst_error(exact, found[prepared.result]) <= 1
    parts = first[prepared.scratch[FAMILY.scratch_names.index("parts")]].view(np.float32)
    return parts[: 2 * blocks * ROOM].reshape(blocks, 2, ROOM).any(axis=2)


@pytest.mark.parametrize("teams", [1, 2])
@pytest.mark.parametrize("blocks", [1, 2, 7, 17])
@pytest.mark.parametrize("lengths", [[300], [16], [300, 300], [300, 40], [300, 0]], ids=str)
def test_every_number_of_blocks_has_the_result(
    blocks: int, lengths: list[int], teams: int, emulator_toolchain: EmulatorToolchain
) -> None:
    rooms = run_on(blocks, lengths, teams, emulator_toolchain)
    pairs, alike = 2 * len(lengths), len(set(lengths)) == 1
    if alike and blocks >= pairs and blocks // pairs * pairs * 16 >= blocks * 15:
        assert not rooms[:, 1].any(), "a block has parts of two pairs"
    elif blocks == 7 and len(lengths) == 1 and lengths[0] > 16:
        assert rooms[:, 1].any(), "no block has parts of two pairs: this tests nothing"
