"""Importing the layers loads neither PyTorch's compiler nor what only tuning and SciPy's matrices need."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

LATER = ("torch._dynamo", "torch._inductor", "sqlalchemy", "scipy")
ASKED = f"""
import sys
import sparsegen.integrations.torch as layers
print(*(name for name in {LATER} if name in sys.modules))
print("tune_model" in dir(layers), "inductor" in dir(layers))
print(layers.tune_model.__name__, layers.InSituTuning.__name__, layers.inductor.enable.__name__)
"""


def test_an_import_loads_what_layers_need() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "True True", "tune_model InSituTuning enable"]


def test_results_are_constant_as_pytorch_marks_them() -> None:
    from sparsegen.integrations.torch.calls.constant_results import constant_result

    def ours() -> None: ...
    def theirs() -> None: ...

    torch.compiler.assume_constant_result(theirs)
    assert constant_result(ours) is ours and vars(ours) == vars(theirs)
