"""Golden sources: what a few variants of every family look like, so that changes of templates are seen.

`pytest tests/test_golden.py --update-golden` rewrites them.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparsegen.backends.emulator import device
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.operators import (
    Activation,
    Block,
    ConvEpilogue,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    ItemValues,
    Layout,
    MaskedConv2dProblem,
    MaskOf,
    Problem,
    Readout,
    Rest,
    SddmmEpilogue,
    SddmmProblem,
    SddProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    SpmmProblem,
)
from sparsegen.render import render

FOLDER = Path(__file__).with_name("golden")


def simplest_config(family: AnyFamily, problem: Problem) -> Any:
    """The valid config with the fewest changes to the defaults; unlike a guess, it stays where it is."""
    choices = family.config_type.tunables()
    for changed in range(len(choices) + 1):
        for some in itertools.combinations(choices, changed):
            for values in itertools.product(*(t.choices for t in some)):
                config = family.config_type(**{t.name: v for t, v in zip(some, values, strict=True)})
                if not family.broken_constraints(problem, config, device()):
                    return config
    raise AssertionError(f"{family.name} has no valid config for {problem}")


@dataclass(frozen=True)
class Golden:
    """The simplest config of a family for one problem, with a name for the file."""

    family: AnyFamily
    name: str
    problem: Problem

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.family.name}-{self.name}.cu"

    def __str__(self) -> str:
        return self.path.stem

    def source(self) -> str:
        """Without the digest of its templates, which every change of any of them changes."""
        source = render(self.family, self.problem, simplest_config(self.family, self.problem))
        return re.sub(r"\(templates [0-9a-f]+\)", "(templates DIGEST)", source)


M, K = 64, 128
PROBLEMS: dict[str, Problem] = {
    "fp32": SpmmProblem(M, K, 128, DType.FLOAT32),
    "fp16-bias-relu": SpmmProblem(M, K, 64, DType.FLOAT16, Layout.ROW, Epilogue.BIAS_RELU),
    "bf16-column-bias": SpmmProblem(M, K, 40, DType.BFLOAT16, Layout.COLUMN, Epilogue.BIAS),
    "sddmm-fp32": SddmmProblem(M, K, 128),
    "sddmm-fp16-scale": SddmmProblem(M, K, 40, DType.FLOAT16, SddmmEpilogue.SCALE),
    "softmax-bf16": SoftmaxProblem(M, K, DType.BFLOAT16),
    "softmax-backward-fp16": SoftmaxBackwardProblem(M, K, DType.FLOAT16),
    "fp16-batch-own-values": SpmmProblem(M, K, 64, DType.FLOAT16, batch=4, item_values=ItemValues.OWN),
    "sddmm-fp16-batch": SddmmProblem(M, K, 40, DType.FLOAT16, batch=4),
    "softmax-fp32-batch": SoftmaxProblem(M, K, batch=4),
    "softmax-backward-fp32-batch": SoftmaxBackwardProblem(M, K, batch=4),
    "dsd-fp16-bias-gelu": DsdProblem(M, K, 64, DType.FLOAT16, Block(32, 32), epilogue=Epilogue.BIAS_GELU),
    "dsd-transposed-fp32-batch": DsdTransposedProblem(M, K, 40, batch=4),
    "dsd-bf16-column-residual": DsdProblem(
        M, K, 64, DType.BFLOAT16, w_layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RESIDUAL
    ),
    "dsd-transposed-fp16": DsdTransposedProblem(M, K, 64, DType.FLOAT16, Block(64, 128)),
    "sdd-bf16": SddProblem(M, K, 64, DType.BFLOAT16, w_layout=Layout.COLUMN),
    "conv-fp16-bias-relu": MaskedConv2dProblem(
        M, K, 64, 64, DType.FLOAT16, rest=Rest.KEPT, epilogue=ConvEpilogue.BIAS_RELU
    ),
    "conv-input-bf16-residual": MaskedConv2dProblem(
        M, K, 32, 64, DType.BFLOAT16, mask_of=MaskOf.INPUT, epilogue=ConvEpilogue.BIAS_RESIDUAL
    ),
    "attention-fp16": SparseAttentionProblem(M, K, 64, DType.FLOAT16),
    "network-fp16": SparseNetworkProblem(5 * M, M + 3, 100, DType.FLOAT16),
    "network-fp16-dying": SparseNetworkProblem(
        5 * M, M + 3, 100, DType.FLOAT16, Activation.DYING_RELU, Readout.TOTALS
    ),
    "attention-bf16": SparseAttentionProblem(M, 100, 40, DType.BFLOAT16),
}
GOLDENS = [
    Golden(family, name, problem)
    for family in families().values()
    for name, problem in PROBLEMS.items()
    if isinstance(problem, family.problem_type) and family.computes(problem)
]


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_source_is_the_golden_one(golden: Golden, request: pytest.FixtureRequest) -> None:
    source = golden.source()
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        golden.path.write_text(source)
    assert golden.path.is_file(), "no golden source yet: run pytest --update-golden and read what it wrote"
    assert source == golden.path.read_text(), "if that is meant: pytest --update-golden, and read the diff"


def test_no_golden_source_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {golden.path.name for golden in GOLDENS}
