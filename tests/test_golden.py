"""Golden sources: what a few variants of every family look like, so that changes of templates are seen.

Of each template one source is kept whole. Others that it makes, for other families and problems, are kept as what
differs: lines that are not in the whole one (+) or not in this one (-).

`pytest tests/test_golden.py --update-golden` rewrites them.
"""

from __future__ import annotations

import difflib
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
    FactorType,
    FilterVolume,
    Given,
    ImageLayout,
    ItemValues,
    Layout,
    MaskBlock,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
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
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)
from sparsegen.render import render

FOLDER = Path(__file__).with_name("golden")


def simplest_config(family: AnyFamily, problem: Problem) -> Any:
    """The valid config with the fewest changes to the defaults; unlike a heuristic, it stays where it is."""
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
    def is_whole(self) -> bool:
        return WHOLE[self.family.template] is self

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.family.name}-{self.name}.{'cu' if self.is_whole else 'diff'}"

    def __str__(self) -> str:
        return self.path.stem

    def source(self) -> str:
        """Without the digest of its templates, which every change of any of them changes."""
        source = render(self.family, self.problem, simplest_config(self.family, self.problem))
        return re.sub(r"\(templates [0-9a-f]+\)", "(templates DIGEST)", source)

    def text(self) -> str:
        """What the file holds."""
        if self.is_whole:
            return self.source()
        whole = WHOLE[self.family.template]
        before, after = (golden.source().splitlines() for golden in (whole, self))
        changes = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        lines = ["@@" if line.startswith("@@") else line for line in changes]  # where it is changes too often
        return "\n".join([f"from {whole.path.name}:", *lines]) + "\n"


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
    "dsd-bf16-e4m3": DsdProblem(
        M, K, 64, DType.BFLOAT16, w_layout=Layout.COLUMN, factor_type=FactorType.E4M3
    ),
    "sdd-bf16": SddProblem(M, K, 64, DType.BFLOAT16, w_layout=Layout.COLUMN),
    "sdd-fp32-e5m2-e4m3": SddProblem(M, K, 64, factor_type=FactorType.E5M2_E4M3),
    "dsd-fp32-column-batch": DsdProblem(
        M, K, 64, w_layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RESIDUAL, batch=4
    ),
    "sdd-fp32-batch": SddProblem(M, K, 64, block=Block(64, 64), batch=4),
    "sdd-fp16-kept": SddProblem(M, K, 64, DType.FLOAT16, rest=Rest.KEPT),
    "conv-fp16-bias-relu": MaskedConv2dProblem(
        M, K, 64, 64, DType.FLOAT16, rest=Rest.KEPT, epilogue=ConvEpilogue.BIAS_RELU
    ),
    "conv-input-bf16-residual": MaskedConv2dProblem(
        M, K, 32, 64, DType.BFLOAT16, mask_of=MaskOf.INPUT, epilogue=ConvEpilogue.BIAS_RESIDUAL
    ),
    "conv-few-fp32": MaskedConv2dProblem(
        M, K, 3, 1, mask_of=MaskOf.INPUT, rest=Rest.KEPT, mask_block=MaskBlock(8, 8)
    ),
    "conv-planes-fp16": MaskedConv2dProblem(M, K, 64, 64, DType.FLOAT16, layout=ImageLayout.NCHW),
    "conv-any-input-fp16": MaskedConv2dProblem(M, K, 64, 64, DType.FLOAT16, mask_of=MaskOf.ANY_INPUT),
    "conv-earlier-fp16": MaskedConv2dProblem(M, K, 64, 64, DType.FLOAT16, given=Given.EARLIER),
    "conv-weights-bf16": MaskedConv2dWeightsProblem(M, K, 64, 64, 2, DType.BFLOAT16),
    "conv-weights-fp32": MaskedConv2dWeightsProblem(M, K, 12, 20, 1, mask_block=MaskBlock(5, 7)),
    "attention-fp16": SparseAttentionProblem(M, K, 64, DType.FLOAT16),
    "network-fp16": SparseNetworkProblem(5 * M, M + 3, 100, DType.FLOAT16),
    "network-fp16-dying": SparseNetworkProblem(
        5 * M, M + 3, 100, DType.FLOAT16, Activation.DYING_RELU, Readout.TOTALS
    ),
    "points-fp32": SubmanifoldConv3dProblem(M, K, 64),
    "points-fp16-residual": SubmanifoldConv3dProblem(
        M, K, 33, DType.FLOAT16, FilterVolume(1, 3, 5), epilogue=ConvEpilogue.BIAS_RESIDUAL
    ),
    "points-bf16": SubmanifoldConv3dWeightsProblem(M, K, 64, DType.BFLOAT16),
    "attention-bf16": SparseAttentionProblem(M, 100, 40, DType.BFLOAT16),
}
GOLDENS = [
    Golden(family, name, problem)
    for family in families().values()
    for name, problem in PROBLEMS.items()
    if isinstance(problem, family.problem_type) and family.computes(problem)
]
WHOLE = {golden.family.template: golden for golden in reversed(GOLDENS)}  # the first of each template


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_source_is_the_golden_one(golden: Golden, request: pytest.FixtureRequest) -> None:
    text = golden.text()
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        golden.path.write_text(text)
    assert golden.path.is_file(), "no golden source yet: run pytest --update-golden and read what it wrote"
    assert text == golden.path.read_text(), "if that is meant: pytest --update-golden, and read the diff"


def test_every_family_and_template_has_a_golden_source() -> None:
    assert {golden.family.name for golden in GOLDENS} == set(families())
    assert {golden.family.template for golden in GOLDENS if golden.is_whole} == set(WHOLE)


def test_no_golden_source_is_left_over(request: pytest.FixtureRequest) -> None:
    known = {golden.path for golden in GOLDENS}
    if request.config.getoption("--update-golden"):
        for path in set(FOLDER.iterdir()) - known:
            path.unlink()
    assert set(FOLDER.iterdir()) == known
