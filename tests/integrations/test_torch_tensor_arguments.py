"""Wrong tensors, masks and numbers of functions on tensors, and of their layers, give a typed error in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from wrong_values import FLAG, NUMBER, PAIR, SIDES, WHOLE, WORD, is_refused_in_words

from sparsegen.masks import BlockMask

torch = pytest.importorskip("torch")
integration = pytest.importorskip("sparsegen.integrations.torch")

NO_TENSOR = (7, "x", [1.0], {}, object(), np.ones((8, 8), np.float32))
NO_OBJECT = (*NO_TENSOR, None)
NO_FACTOR = (*NUMBER, float("nan"), float("inf"), 1e39)
NO_DENSITY = (*NUMBER, 0, -0.1, 1.5, float("nan"))
NO_LONGEST = (*NUMBER, -0.1, 1.5, float("nan"))
NO_SHARE = NO_DENSITY[1:]  # where text is as good as a number
NO_P = (*NUMBER, 1, -0.1, float("nan"))
NO_BLOCK = ("x", 7, (16, 17), [], {}, object(), np.ones(2))
WHERE = ("nowhere", 0.5, [1], {}, object())
NO_DTYPE = ("float32", 7, [1], object())


def whole(*shape: int) -> Any:
    return torch.ones(shape, dtype=torch.int32)


def tensors(*shape: int) -> tuple[Any, ...]:
    """Wrong for a floating-point tensor of this shape."""
    made = torch.ones(shape)
    return (
        *NO_OBJECT, torch.tensor(1.0), torch.ones(3, *shape, 1), whole(*shape), made > 0, made.to(torch.complex64),
        made.to_sparse(),
    )  # fmt: skip


def biases(count: int) -> tuple[Any, ...]:
    return (*NO_TENSOR, torch.ones(count + 1), torch.tensor(1.0), whole(count))


def block_mask() -> Any:
    return integration.BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), (16, 16))


def attended() -> dict[str, Any]:
    return {name: torch.ones(1, 2, 32, 8) for name in "qkv"}


def paged() -> dict[str, Any]:
    pages = {name: torch.ones(3, 16, 2, 8) for name in ("k_pages", "v_pages")}
    table, lengths = torch.zeros(1, 2, dtype=torch.int32), 20 * whole(1)
    return {"q": torch.ones(1, 2, 4, 8), **pages, "page_table": table, "lengths": lengths}


def queried() -> dict[str, Any]:
    return dict(zip(("query", "key", "value"), attended().values(), strict=True))


def pruned_linear() -> dict[str, Any]:
    model = torch.nn.Linear(8, 8)
    with torch.no_grad():
        model.weight[0] = 0
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}


def cells() -> Any:
    return torch.arange(5, dtype=torch.int32)[:, None] * torch.tensor([[0, 0, 0, 1]], dtype=torch.int32)


def kernel_map() -> Any:
    return integration.KernelMap.of(cells())


def pattern() -> Any:
    return integration.SparsePattern(torch.ones(8, 8))


def eight_bit() -> Any:
    return torch.ones(32, 32).to(torch.float8_e4m3fn)


MASKS = (*NO_OBJECT, torch.ones(32, 32), BlockMask.from_blocks(np.ones((2, 2), np.bool_), (16, 16)))
MASK_OR_NONE = tuple(one for one in MASKS if one is not None)
NO_ELEMENTS = (*NO_TENSOR, torch.ones(32, 32), torch.ones(3, 32, 32) > 0, torch.ones(1, 1, 1, 32, 32) > 0)
OF_HEADS = (*NO_TENSOR, torch.ones(3), torch.ones(1, 2), whole(2))
SEQUENCES = (None, *NO_TENSOR, torch.ones(2), whole(1), whole(1, 2))
WORDS = {"words": (*NO_OBJECT, torch.ones(6), torch.ones(5, dtype=torch.uint64))}
GOOD: dict[str, Callable[[], dict[str, Any]]] = {
    "dsd": lambda: {"x": torch.ones(32, 32), "weight": torch.ones(8, 32), "mask": block_mask()},
    "dsd_transposed": lambda: {"x": torch.ones(32, 32), "d": torch.ones(32, 8), "mask": block_mask()},
    "sdd": lambda: {"d": torch.ones(32, 8), "weight": torch.ones(8, 32), "mask": block_mask()},
    "sdd_into": lambda: {
        "out": torch.ones(32, 32), "d": torch.ones(32, 8), "weight": torch.ones(8, 32), "mask": block_mask(),
    },
    "scaled_dsd": lambda: {
        "x": eight_bit(), "weight": eight_bit(), "mask": block_mask(), "scale_x": torch.ones(1),
        "scale_weight": torch.ones(1),
    },
    "scaled_sdd": lambda: {
        "d": eight_bit(), "weight": eight_bit().t(), "mask": block_mask(), "scale_d": torch.ones(1),
        "scale_weight": torch.ones(1),
    },
    "linear": lambda: {"x": torch.ones(4, 8), "values": torch.ones(64), "pattern": pattern()},
    "transposed_product": lambda: {"y": torch.ones(4, 8), "values": torch.ones(64), "pattern": pattern()},
    "sampled_product": lambda: {"y": torch.ones(4, 8), "x": torch.ones(4, 8), "pattern": pattern()},
    "sparse_attention": lambda: {name: torch.ones(2, 8, 4) for name in "qkv"} | {"pattern": pattern()},
    "block_attention": lambda: attended() | {"mask": block_mask()},
    "paged_attention": lambda: paged() | {"pages": whole(1, 2, 1), "counts": whole(1, 2)},
    "flex_attention": lambda: queried() | {"block_mask": integration.to_flex(block_mask())},
    "hugging_face_attention": lambda: queried() | {"module": None, "block_mask": block_mask()},
    "masks.page_list": lambda: {"chosen": torch.ones(1, 2, 2) > 0},
    "masks.topk_blocks": lambda: {"scores": torch.ones(2, 2), "keep": 1, "block": 16, "shape": (32, 32)},
    "masks.top_p_blocks": lambda: {"scores": torch.ones(2, 2), "p": 0.5, "block": 16, "shape": (32, 32)},
    "masks.threshold_blocks": lambda: {"scores": torch.ones(2, 2), "least": 0.5, "block": 16, "shape": (32, 32)},
    "masks.pooled_scores": lambda: {"q": torch.ones(1, 2, 32, 8), "k": torch.ones(1, 2, 32, 8), "block": 16},
    "masks.window_blocks": lambda: {"shape": (32, 32), "block": 16, "causal": True, "window": 9},
    "masks.document_blocks": lambda: {"ids": whole(32), "block": 16},
    "masks.tree_blocks": lambda: {"parents": whole(32) - 2, "context": 5, "block": 16},
    "masks.from_elements": lambda: {"elements": torch.ones(32, 32) > 0, "block": 16},
    "masks.dilated": lambda: {"mask": block_mask(), "by": 1},
    "masks.union_of_group": lambda: {
        "mask": integration.BlockMaskTensor.from_blocks(torch.ones(4, 2, 2) > 0, 16), "group": 2,
    },
    "block_dropout": lambda: {"x": torch.ones(32, 32), "block": 16},
    "draw_block_mask": lambda: {"shape": (32, 32), "block": (16, 16), "p": 0.5},
    "BlockMaskTensor": lambda: {"shape": (32, 32), "block": (16, 16), "words": block_mask().words},
    "BlockMaskTensor.from_blocks": lambda: {"live": torch.ones(2, 2) > 0, "block": (16, 16)},
    "BlockMaskTensor.from_host": lambda: {"mask": block_mask().to_host()},
    "from_counts": lambda: {
        "counts": whole(2), "indices": whole(2, 2) - 1, "block": (16, 16), "shape": (32, 32),
    },
    "from_torch_bsr": lambda: {"tensor": torch.ones(32, 32).to_sparse_bsr((16, 16))},
    "from_flex": lambda: {"flex": integration.to_flex(block_mask()), "allow_partial": True},
    "partial_blocks_from_flex": lambda: {"flex": integration.to_flex(block_mask()), "room": 9},
    "PartialBlocks": lambda: {
        "shape": (32, 32), "block": (16, 16), "numbers": whole(2, 2) - 2, "bits": torch.ones(3, 4, dtype=torch.uint64),
    },
    "varlen_block_attention": lambda: {name: torch.ones(32, 2, 8) for name in "qkv"} | {
        "cu_seqlens_q": whole(2) * 32, "block": 16,
    },
    "masks.varlen_blocks": lambda: {
        "cu_seqlens_q": whole(2) * 32, "cu_seqlens_k": whole(2) * 32, "shape": (32, 32), "block": 16,
    },
    "flex_elements": lambda: {"flex": integration.to_flex(block_mask())},
    "to_torch_bsr": lambda: {"mask": block_mask()},
    "to_counts": lambda: {"mask": block_mask()},
    "to_flex": lambda: {"mask": block_mask()},
    "KernelMap.of": lambda: {"coordinates": cells()},
    "submanifold_conv3d": lambda: {
        "x": torch.ones(5, 4), "weight": torch.ones(2, 3, 3, 3, 4), "kernel_map": kernel_map(),
    },
    "SubmanifoldConv3d": lambda: {"in_channels": 4, "out_channels": 2},
    "masked_conv2d": lambda: {
        "x": torch.ones(1, 4, 16, 16), "weight": torch.ones(2, 4, 3, 3), "mask": torch.ones(1, 1, 1) > 0,
        "padding": 1,
    },
    "masked_batch_norm": lambda: {
        "x": torch.ones(1, 4, 8, 8), "live": torch.ones(1, 1, 8, 8) > 0, "norm": torch.nn.BatchNorm2d(4),
    },
    "MaskSource": lambda: {},
    "MaskSource.set": lambda: {"mask": torch.ones(1, 1, 1) > 0, "size": (16, 16)},
    "DropoutLinear": lambda: {"in_features": 8, "out_features": 8},
    "DropoutLinear.from_linear": lambda: {"linear": torch.nn.Linear(8, 8)},
    "SparsePattern": lambda: {"matrix": torch.ones(8, 8)},
    "fold_batch_norms": lambda: {"model": torch.nn.Sequential(torch.nn.BatchNorm2d(4)).eval()},
    "hold_zeros": pruned_linear,
    "SparseConv2d.from_dense": lambda: {"dense": torch.nn.Conv2d(4, 4, 3)},
    "MaskedConv2d.from_dense": lambda: {"layer": torch.nn.Conv2d(4, 4, 3)},
    "convert_convolutions": lambda: {
        "model": torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3)), "source": integration.MaskSource(),
    },
}  # fmt: skip
NO_SIDES = (*WHOLE[5:], 0, (1, 2, 3), "ab", (1.5, 2))
NO_SCALE = (*NO_OBJECT, torch.ones(2), whole(1))
SCALED = {"mask": MASKS, "scale": NO_FACTOR, "dtype": (*NO_DTYPE, None, torch.float64)}
LAYER = {"p": NO_P, "block": NO_BLOCK, "activation": WORD, "own_seed": FLAG, "dense": WORD}
WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "dsd": {
        "x": tensors(32, 32), "weight": tensors(8, 32), "mask": MASKS, "bias": biases(8), "scale": NO_FACTOR,
        "relu": FLAG, "dense": WORD,
    },
    "dsd_transposed": {
        "x": tensors(32, 32), "d": tensors(32, 8), "mask": MASKS, "scale": NO_FACTOR, "dense": WORD,
    },
    "sdd": {"d": tensors(32, 8), "weight": tensors(8, 32), "mask": MASKS, "scale": NO_FACTOR, "dense": WORD},
    "sdd_into": {
        "out": (*tensors(32, 32), torch.ones(32, 32).t()[:, ::2]), "d": tensors(32, 8), "weight": tensors(8, 32),
        "mask": MASKS, "scale": NO_FACTOR,
    },
    "scaled_dsd": {
        "x": tensors(32, 32), "weight": tensors(32, 32), "scale_x": NO_SCALE, "scale_weight": NO_SCALE, **SCALED,
    },
    "scaled_sdd": {
        "d": tensors(32, 32), "weight": tensors(32, 32), "scale_d": NO_SCALE, "scale_weight": NO_SCALE, **SCALED,
    },
    "linear": {
        "x": (*tensors(4, 8)[:-5], torch.ones(4, 7)), "values": tensors(64), "pattern": (*NO_OBJECT, torch.ones(8, 8)),
        "bias": biases(8), "activation": WORD,
    },
    "transposed_product": {"y": tensors(4, 8), "values": tensors(64), "pattern": NO_OBJECT},
    "sampled_product": {"y": tensors(4, 8), "x": tensors(4, 8), "pattern": NO_OBJECT},
    "sparse_attention": {
        **{name: tensors(2, 8, 4) for name in "qkv"}, "pattern": NO_OBJECT, "scale": NO_FACTOR,
    },
    "block_attention": {
        **{name: tensors(1, 2, 32, 8) for name in "qkv"}, "mask": MASK_OR_NONE, "elements": NO_ELEMENTS, "causal": FLAG,
        "window": (*WHOLE, 0), "sinks": WHOLE, "from_start": FLAG, "scale": NO_FACTOR, "softcap": (*NO_FACTOR, 0, -1),
        "slopes": OF_HEADS, "sink_logits": OF_HEADS, "order": WORD, "return_lse": FLAG, "deterministic": FLAG,
    },
    "paged_attention": {
        "q": tensors(1, 2, 4, 8), **{name: tensors(3, 16, 2, 8) for name in ("k_pages", "v_pages")},
        **{name: (*NO_OBJECT, whole(2, 2, 2), torch.ones(1, 2)) for name in ("page_table", "lengths")},
        **{name: (*NO_TENSOR, whole(2, 2, 2), torch.ones(1, 2)) for name in ("pages", "counts")},
        "tree": (*NO_TENSOR, whole(2, 2), torch.ones(2) > 0, torch.ones(3, 3) > 0, torch.ones(40, 40) > 0),
        "scale": NO_FACTOR, "order": WORD, "return_lse": FLAG,
    },
    "flex_attention": {
        **{name: tensors(1, 2, 32, 8) for name in ("query", "key", "value")}, "score_mod": NO_TENSOR,
        "block_mask": NO_TENSOR, "scale": NO_FACTOR, "enable_gqa": FLAG, "return_lse": FLAG, "kernel_options": (),
        "return_aux": NO_TENSOR,
    },
    "hugging_face_attention": {
        "module": (), **{name: tensors(1, 2, 32, 8) for name in ("query", "key", "value")},
        "attention_mask": (*NO_TENSOR, torch.ones(1, 1, 32, 32), torch.ones(3) > 0, torch.ones(3, 3) > 0),
        "scaling": NO_FACTOR, "dropout": (*NUMBER, 0.1), "is_causal": FLAG, "sliding_window": (*WHOLE, 0),
        "softcap": (*NO_FACTOR, 0, -1), "block_mask": MASK_OR_NONE, "s_aux": OF_HEADS,
    },
    "varlen_block_attention": {
        **{name: tensors(32, 2, 8) for name in "qkv"}, "cu_seqlens_q": SEQUENCES, "cu_seqlens_k": SEQUENCES[1:],
        "mask": MASK_OR_NONE, "causal": FLAG, "window": (*WHOLE, 0), "block": SIDES,
    },
    "masks.varlen_blocks": {
        "cu_seqlens_q": SEQUENCES, "cu_seqlens_k": SEQUENCES[1:], "shape": PAIR, "block": SIDES, "causal": FLAG,
        "window": (*WHOLE, 0), "density": NO_DENSITY,
    },
    "masks.page_list": {"chosen": (*NO_OBJECT, torch.ones(2, 2), torch.tensor(True))},
    "masks.topk_blocks": {
        "scores": tensors(2, 2), "keep": (*WHOLE, 0, 3, 0.0), "block": SIDES, "shape": PAIR, "per": WORD,
    },
    "masks.top_p_blocks": {
        "scores": tensors(2, 2), "p": NO_DENSITY, "block": SIDES, "shape": PAIR, "density": NO_DENSITY,
    },
    "masks.threshold_blocks": {
        "scores": tensors(2, 2), "least": (*NUMBER, torch.ones(3, 1, 1, 1)), "block": SIDES, "shape": PAIR,
        "density": NO_DENSITY,
    },
    "masks.pooled_scores": {
        "q": tensors(1, 2, 32, 8), "k": tensors(1, 2, 32, 8), "block": SIDES, "pooling": WORD, "scale": NO_FACTOR,
    },
    "masks.window_blocks": {
        "shape": PAIR, "block": SIDES, "causal": FLAG, "window": (*WHOLE, 0), "sinks": WHOLE, "from_start": FLAG,
        "device": WHERE,
    },
    "masks.document_blocks": {
        "ids": (*NO_OBJECT, torch.ones(32), torch.ones(32) > 0, whole(2, 2, 32), torch.tensor(1), whole(0)),
        "block": SIDES, "key_ids": (*NO_TENSOR, torch.ones(32), whole(1, 32)), "density": NO_DENSITY,
    },
    "masks.tree_blocks": {
        "parents": (*NO_OBJECT, torch.ones(32), torch.ones(32) > 0, whole(2, 2, 32), torch.tensor(1), whole(0)),
        "context": WHOLE, "block": SIDES, "density": NO_DENSITY,
    },
    "masks.from_elements": {
        "elements": (*NO_OBJECT, torch.ones(32, 32), torch.ones(32) > 0), "block": SIDES, "density": NO_DENSITY,
    },
    "masks.dilated": {"mask": MASKS, "by": WHOLE},
    "masks.union_of_group": {"mask": (*MASKS, block_mask()), "group": (*WHOLE, 0, 3)},
    "block_dropout": {
        "x": (*NO_OBJECT, whole(32, 32), torch.ones(32, 32).to_sparse()), "p": NO_P, "block": NO_BLOCK,
        "training": FLAG,
    },
    "draw_block_mask": {
        "shape": PAIR, "block": PAIR[1:], "p": NO_P, "drawn": WORD, "device": WHERE,
        "state": (*NO_TENSOR, torch.ones(2)),
    },
    "BlockMaskTensor": {"shape": PAIR, "block": PAIR, "density": NO_DENSITY, "longest": NO_LONGEST, **WORDS},
    "BlockMaskTensor.from_blocks": {
        "live": (*NO_OBJECT, torch.ones(2, 2), torch.ones(2) > 0), "block": PAIR[1:], "shape": PAIR,
        "density": NO_DENSITY, "longest": NO_LONGEST,
    },
    "BlockMaskTensor.from_host": {"mask": (*NO_OBJECT, block_mask()), "device": WHERE},
    "from_counts": {
        "counts": (*NO_OBJECT, whole(3), torch.ones(2)), "indices": (*NO_OBJECT, whole(2), torch.ones(2, 2)),
        "block": PAIR, "shape": PAIR, "density": NO_DENSITY,
    },
    "from_torch_bsr": {"tensor": (*NO_OBJECT, torch.ones(32, 32))},
    "from_flex": {"flex": NO_OBJECT, "item": (*PAIR, (1, 0)), "allow_partial": FLAG},
    "flex_elements": {"flex": NO_OBJECT, "item": (*PAIR, (1, 0))},
    "partial_blocks_from_flex": {"flex": NO_OBJECT, "room": (*WHOLE, 0)},
    "PartialBlocks": {"shape": PAIR, "block": PAIR, "numbers": (*NO_OBJECT, torch.ones(2, 2)), "bits": NO_OBJECT},
    "to_torch_bsr": {"mask": MASKS, "dtype": (*NO_DTYPE, None)},
    "to_counts": {"mask": MASKS},
    "to_flex": {"mask": MASKS},
    "KernelMap.of": {
        "coordinates": (*NO_OBJECT, cells().long(), cells()[:, :3], torch.zeros(2, 4, dtype=torch.int32)),
        "filter_size": (*WHOLE, 0, 2, 9, (1,), "ab"), "dilation": (*WHOLE, 0, (1,), "ab"), "refuse_equal": FLAG,
    },
    "submanifold_conv3d": {
        "x": tensors(5, 4), "weight": tensors(2, 3, 3, 3, 4), "kernel_map": (*NO_OBJECT, cells()), "bias": biases(2),
        "density": NO_SHARE, "relu": FLAG,
    },
    "SubmanifoldConv3d": {
        "in_channels": (*WHOLE, 0), "out_channels": (*WHOLE, 0), "filter_size": (*WHOLE, 0, 2), "bias": FLAG,
        "density": NO_SHARE, "device": WHERE, "dtype": NO_DTYPE,
    },
    "masked_conv2d": {
        "x": tensors(1, 4, 16, 16), "weight": tensors(2, 4, 3, 3),
        "mask": (*NO_OBJECT, torch.ones(1, 1, 1), torch.ones(1, 2, 1) > 0), "bias": biases(2), "block": SIDES,
        "mask_of": WORD, "stride": NO_SIDES, "padding": (*WHOLE[5:], (1, 2, 3), "ab"), "dilation": NO_SIDES,
        "groups": (*WHOLE, 0, 3),
        "density": NO_SHARE, "relu": FLAG, "dense": WORD,
    },
    "masked_batch_norm": {
        "x": tensors(1, 4, 8, 8), "live": (*NO_OBJECT, torch.ones(1, 1, 8, 8), torch.ones(1, 8, 8) > 0),
        "norm": (*NO_OBJECT, torch.nn.Linear(4, 4)),
    },
    "MaskSource": {"block": SIDES, "margin": WHOLE},
    "MaskSource.set": {
        "mask": (*NO_TENSOR, torch.ones(1, 1, 1), torch.ones(1, 1) > 0), "size": (*PAIR, None),
    },
    "DropoutLinear": {
        "in_features": WHOLE, "out_features": WHOLE, "bias": FLAG, "device": WHERE, "dtype": NO_DTYPE, **LAYER,
    },
    "DropoutLinear.from_linear": {"linear": NO_OBJECT, **LAYER},
    "SparsePattern": {"matrix": (7, "x", None, [1], {}, object(), np.ones(3)), "run_dense": WORD, "db": (7, object())},
    "SparseConv2d.from_dense": {
        "dense": NO_OBJECT, "mask": (7, "x", {}, object(), torch.ones(4)), "sparsity": NO_P, "run_dense": WORD,
        "db": (7, object()),
    },
    "MaskedConv2d.from_dense": {"layer": NO_OBJECT},
    "fold_batch_norms": {"model": NO_OBJECT, "example_inputs": (7, "x", [1], (), object())},
    "hold_zeros": {"model": NO_OBJECT, "optimizer": NO_OBJECT, "exclude": (7, [1], {}, object())},
    "convert_convolutions": {"model": NO_OBJECT, "source": NO_OBJECT, "density": NO_SHARE, "include": (7, "x", [1])},
}  # fmt: skip
# Reports, what other tests hold wrong values against, and what has no arguments of its own.
ELSEWHERE = {
    "Activation", "ConversionReport", "ConvertedLayer", "ConvolutionReport", "DenseLayer", "DepthwiseConv2d",
    "DropBlockConv2d", "InSituTuning", "MaskedSequential", "PointwiseConv2d", "PreparedLinear", "ProgramKind",
    "QuantizedLinear", "Shipped", "SourcedConv2d", "SparseAttention", "SparseConv2d", "SparseLinear", "convert",
    "load", "masked_sequential", "ship", "ship_operators", "tune_model",
}  # fmt: skip
CASES = [(label, name) for label, wrong in WRONG.items() for name in wrong]


def function_of(label: str) -> Callable[..., Any]:
    found: Callable[..., Any] = (
        integration.MaskSource().set if label == "MaskSource.set" else attrgetter(label)(integration)
    )
    return found


def test_every_public_name_has_wrong_values() -> None:
    assert {label.partition(".")[0] for label in WRONG} | ELSEWHERE == set(integration.__all__)


@pytest.mark.parametrize("label", WRONG)
def test_every_parameter_has_wrong_values(label: str) -> None:
    parameters = inspect.signature(function_of(label)).parameters.values()
    named = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
    assert named - {"pattern"} <= WRONG[label].keys() <= named


@pytest.mark.parametrize("label", GOOD)
def test_good_values_are_taken(label: str) -> None:
    function_of(label)(**GOOD[label]())


@pytest.mark.parametrize(("label", "name"), CASES)
def test_wrong_values_are_refused_in_words(label: str, name: str) -> None:
    call, good = function_of(label), GOOD[label]
    assert not [one for one in WRONG[label][name] if not is_refused_in_words(call, good() | {name: one})]
