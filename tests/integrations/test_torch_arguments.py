"""Wrong arguments of the layers and of `convert` give a typed error in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from wrong_values import DEVICE, FLAG, NUMBER, PAIR, PLACE, TEXTS, WHOLE, WORD, is_refused_in_words

from sparsegen.operators import Quantization, ValueType

torch = pytest.importorskip("torch")
integration = pytest.importorskip("sparsegen.integrations.torch")

OBJECTS = (7, "x", None, [1], {}, object(), np.ones((8, 8)))
WHERE = ("nowhere", 0.5, [1], {}, object())  # PyTorch takes whole numbers for GPUs
MASKS = (7, "x", [1], {}, object(), np.ones(3))
ROUNDING = Quantization(ValueType.INT8)


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())


def dense() -> Any:
    return model()[0]


def pattern() -> Any:
    return integration.SparsePattern(torch.ones(8, 8))


ROWS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]], dict[str, tuple[Any, ...]]]] = {
    "SparseLinear": (
        integration.SparseLinear,
        lambda: {"pattern": pattern()},
        {"pattern": OBJECTS, "bias": FLAG, "activation": WORD, "device": WHERE, "dtype": ("float32", 7, [1], object())},
    ),
    "SparseLinear.from_dense": (
        integration.SparseLinear.from_dense,
        lambda: {"dense": dense()},
        {"dense": OBJECTS, "mask": MASKS, "sparsity": (*NUMBER, 1, np.nan), "run_dense": WORD, "db": PLACE},
    ),
    "SparseLinear.from_dense, pruned": (
        integration.SparseLinear.from_dense,
        lambda: {"dense": dense(), "sparsity": 0.5},
        {"pattern": WORD},
    ),
    "SparseLinear.prepared": (
        lambda **given: integration.SparseLinear.from_dense(dense()).prepared(**given),
        lambda: {"tokens": 4},
        {"tokens": (*WHOLE, 0), "on_miss": WORD, "dense": WORD, "probe": FLAG, "l2": WORD, "db": PLACE}
        | {"value_type": WORD, "group": WORD, "symmetric": FLAG},
    ),
    "QuantizedLinear": (
        integration.QuantizedLinear,
        lambda: {"pattern": pattern(), "rounding": ROUNDING},
        {
            "pattern": OBJECTS, "rounding": (*OBJECTS, "int4"), "bias": FLAG, "activation": WORD, "device": WHERE,
            "dtype": ("float32", 7, [1], object()),
        },
    ),
    "QuantizedLinear.from_sparse": (
        integration.QuantizedLinear.from_sparse,
        lambda: {"layer": integration.SparseLinear.from_dense(dense()), "rounding": ROUNDING},
        {"layer": OBJECTS, "rounding": (*OBJECTS, "int4")},
    ),
    "SparseAttention": (
        integration.SparseAttention,
        lambda: {"mask": pattern(), "heads": 2, "head_dim": 8},
        {"mask": MASKS, "heads": (*WHOLE, 0), "head_dim": (*WHOLE, 0), "scale": NUMBER, "device": WHERE},
    ),
    "convert": (
        integration.convert,
        lambda: {"model": model(), "pattern": "unstructured", "sparsity": 0.5, "tokens": 4, "device": "emulator"},
        {
            "model": OBJECTS, "pattern": WORD, "sparsity": (*NUMBER, 1, np.nan), "scope": WORD,
            "exclude": TEXTS, "tokens": (*WHOLE, 0), "dense": WORD, "example_inputs": (7, "x", [1], (), object()),
            "fuse": FLAG, "fold_norms": FLAG, "capture": FLAG, "compile_mode": WORD, "value_type": WORD, "group": WORD,
            "symmetric": FLAG, "device": DEVICE, "db": PLACE,
        },
    ),
    "convert, block": (
        integration.convert, lambda: {"model": model(), "pattern": "block", "sparsity": 0.5}, {"block": PAIR},
    ),
    "convert, nm": (integration.convert, lambda: {"model": model(), "pattern": "nm"}, {"nm": PAIR}),
}  # fmt: skip
CASES = [
    pytest.param(call, good, name, values, id=f"{label}-{name}")
    for label, (call, good, wrong) in ROWS.items()
    for name, values in wrong.items()
]


@pytest.mark.parametrize("label", sorted({label.partition(",")[0] for label in ROWS}))
def test_every_parameter_has_wrong_values(label: str) -> None:
    name, _, method = label.partition(".")
    function = getattr(integration, name)
    parameters = inspect.signature(getattr(function, method) if method else function).parameters
    wrong = set().union(*(row[2] for key, row in ROWS.items() if key.partition(",")[0] == label))
    assert parameters.keys() - {"self"} == wrong


@pytest.mark.parametrize(("call", "good", "name", "values"), CASES)
def test_wrong_values_are_refused_in_words(
    call: Callable[..., Any],
    good: Callable[[], dict[str, Any]],
    name: str,
    values: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    assert not [value for value in values if not is_refused_in_words(call, good() | {name: value})]


def test_numpy_numbers_are_as_good() -> None:
    layer = integration.SparseAttention(pattern(), np.uint8(2), np.int64(8), scale=np.float32(0.5))
    assert (layer.heads, layer.head_dim, layer.scale) == (2, 8, 0.5) and type(layer.heads) is int
    report = integration.convert(model(), sparsity=np.float32(0.5), tokens=np.uint8(4), device="emulator")
    assert report.tokens == (4,) and len(report.converted) == 1
