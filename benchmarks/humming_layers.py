"""Dense layers of low bits by the library humming, where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

KINDS = {
    "humming_w4": {"dtype": "int4", "group_size": 128},
    "humming_fp8": {"dtype": "float8e4m3"},
    "humming_w8": {"dtype": "int8"},
}


def is_installed() -> bool:
    return find_spec("humming") is not None


def humming_layer(weight: Tensor, kind: str, tokens: int) -> tuple[Callable[[Tensor], Tensor], int]:
    """Returns a product with up to as many tokens, compiled, and bytes of its weight, which is rounded.

    Its own table of kernels has one for each of some 90 numbers of tokens, which take 20 s to compile: those of more
    tokens are left out.
    """
    from humming.layer import HummingLayer  # type: ignore[import-not-found]
    from humming.tune import get_heuristics_config  # type: ignore[import-not-found]

    m, k = weight.shape
    layer = HummingLayer(
        shape_n=m, shape_k=k, weight_config=dict(KINDS[kind]), torch_dtype=torch.float16
    ).cuda()
    layer.load_from_unquantized(weight)
    layer.transform()
    table = get_heuristics_config(layer.humming_config)
    call = partial(layer, tuning_config=json.dumps([entry for entry in table if entry[0] < tokens]))
    call(torch.zeros((tokens, k), dtype=torch.float16, device=weight.device))
    nbytes: Any = sum(part.nbytes for part in (*layer.parameters(), *layer.buffers()))
    return call, nbytes
