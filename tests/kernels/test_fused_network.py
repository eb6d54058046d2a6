"""`fused_network` where few blocks take what is left: inputs behind whole tiles, or those that live."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contract_calls import run_and_compare
from contract_cases import Kind, Variant
from tuning_samples import H100

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.networks.network import Network
from sparsegen.networks.radixnet import CLIP, radixnet
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.render import render

FAMILY = family("fused_network")


@pytest.mark.sanitizer
@pytest.mark.parametrize("left", [0, 1, 40, 23 * 8])
def test_the_rest_goes_to_few_blocks(emulator_toolchain: EmulatorToolchain, left: int) -> None:
    """All inputs are computed, once each: whole tiles of all blocks, and more or less than a piece for each."""
    matrix = radixnet(64, 3).stacked(DType.FLOAT16)
    inputs = 24 * device().multiprocessors + left
    kind = Kind(
        SparseNetworkProblem,
        (("n", inputs),),
        (("dtype", DType.FLOAT16), ("activation", Activation.RELU), ("readout", Readout.TOTALS)),
    )
    problem = kind.problem(matrix)
    chosen = FAMILY.config(inputs=24, warps=4, run=1, parts=2, rest=16, first_check=0, checks=1)
    source = render(FAMILY, problem, chosen)
    variant = Variant(FAMILY, chosen, kind, ("radixnet",), source)
    packed = FAMILY.pack(problem, chosen, matrix)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    run_and_compare(variant, kernel, problem, matrix, packed, where=f"{left} left")


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("inputs", "hand_over", "first_check", "checks"),
    [(8, 1, 1, 1), (8, 2, 1, 3), (24, 1, 2, 2), (56, 3, 1, 3)],
)
def test_living_inputs_are_handed_over_to_few_blocks(
    emulator_toolchain: EmulatorToolchain, inputs: int, hand_over: int, first_check: int, checks: int
) -> None:
    """Whoever computes them, every input has its result; blocks whose inputs all died are there as well."""
    rng = np.random.default_rng(4)
    made = radixnet(64, 7).layers
    weights = [layer.with_values(rng.uniform(-0.05, 0.1, layer.nnz).astype(np.float32)) for layer in made]
    network = Network.of(weights, [rng.uniform(-0.9, 0, 64).astype(np.float32) for _ in weights], CLIP)
    matrix = network.stacked(DType.FLOAT16)
    kind = Kind(
        SparseNetworkProblem,
        (("n", 40 * device().multiprocessors + 3),),
        (("dtype", DType.FLOAT16), ("activation", Activation.DYING_RELU), ("readout", Readout.TOTALS)),
    )
    problem = kind.problem(matrix)
    chosen = FAMILY.config(
        inputs=inputs,
        warps=4,
        run=1,
        parts=1,
        hand_over=hand_over,
        first_check=first_check,
        checks=checks,
    )
    source = render(FAMILY, problem, chosen)
    variant = Variant(FAMILY, chosen, kind, ("radixnet",), source)
    packed = FAMILY.pack(problem, chosen, matrix)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    run_and_compare(variant, kernel, problem, matrix, packed, where=f"handed over {hand_over}")


def test_handing_over_needs_a_check_and_all_blocks_at_once() -> None:
    problem = SparseNetworkProblem(120 * 1024, 1027, 60000, DType.FLOAT16, Activation.DYING_RELU)
    chosen = FAMILY.config(inputs=56, hand_over=2, first_check=5, checks=3)
    assert not FAMILY.broken_constraints(problem, chosen, H100)
    assert FAMILY.launch(problem, chosen, {}, H100).together
    assert not FAMILY.launch(problem, replace(chosen, hand_over=0), {}, H100).together
    assert FAMILY.broken_constraints(problem, replace(chosen, checks=1), H100) == [
        "inputs are shared out anew behind a check (hand_over 2, first_check 5, checks 1)"
    ]
