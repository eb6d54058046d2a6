"""Calls of operators with data of the call, such as masks: noted while a model is exported, then launched instead."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsegen.errors import DeviceUnavailableError, OperandError
from sparsegen.integrations.torch.attention import attention, block_attention_kernels
from sparsegen.integrations.torch.attention.pooled_scores import plain_pooled_scores
from sparsegen.integrations.torch.blocks import plain_masks, plain_places
from sparsegen.integrations.torch.calls.launches import kind_of
from sparsegen.integrations.torch.calls.prepared_calls import PreparedCall
from sparsegen.integrations.torch.convolution import masked_conv_kernels
from sparsegen.kernels.base import Device
from sparsegen.plan.mask_sources import Largest
from sparsegen.plan.shipping.launches import ShippedLaunch, shipped_launch
from sparsegen.plan.variant_launcher import variant_launcher

PREPARED: Mapping[str, Callable[..., PreparedCall | None]] = {
    "attention": attention.prepared,
    "block_attention": block_attention_kernels.prepared,
    "masked_conv2d": masked_conv_kernels.prepared,
}
PLAIN: Mapping[
    str, Callable[..., object]
] = {  # what a program computes by PyTorch: masks, which take no time
    "pack_block_mask": plain_masks.packed_blocks,
    "pack_largest_blocks": lambda scores, among, live: plain_masks.largest_blocks(
        scores, Largest(among), live
    ),
    "pack_share_of_rows": plain_masks.share_of_rows,
    "pack_from_threshold": plain_masks.from_threshold,
    "pack_dilated_union": plain_masks.dilated_union,
    "pack_both_masks": plain_masks.both_masks,
    "pack_window": plain_masks.window_of_sizes,
    "pack_listed_blocks": plain_masks.listed,
    "document_blocks": plain_places.document_blocks,
    "mark_places": plain_places.mark_places,
    "mark_branches": plain_places.mark_branches,
    "pooled_block_scores": plain_pooled_scores,
}


@dataclass(frozen=True, slots=True, eq=False)
class ShippedCall:
    """A call's kernel as a library has it.

    Attributes:
        packed: what `ShippedLaunch` has packed, on the model's device.
    """

    launch: ShippedLaunch
    packed: Tensor
    prepared: PreparedCall

    def computed_by(self, namespace: str, number: int) -> Callable[[Sequence[Tensor]], object]:
        """The function that computes it in a program, of the operator's inputs; see `ShippedProduct`."""
        operator = getattr(torch.ops, namespace).launch

        def compute(inputs: Sequence[Tensor]) -> object:
            given = self.prepared.operands(inputs)
            operands = [_stored(given[spec.name], spec.shape) for spec in self.launch.operands]
            results = operator(operands, self.packed, number)
            names = (spec.name for spec in self.launch.results)
            return self.prepared.results(dict(zip(names, results, strict=True)), inputs)

        return compute


class OperatorCalls:
    """Calls of operators in a model; calls that are equal run one launch.

    Attributes:
        noted: the inputs of each, which may have no data, by what tells it from others.
    """

    def __init__(self) -> None:
        self.noted: dict[Hashable, tuple[str, tuple[Any, ...]]] = {}

    def note(self, name: str, inputs: tuple[object, ...], operator: Callable[..., object]) -> object:
        """A stand-in (`standing_in`) that notes a call and leaves it to the operator."""
        if name in PLAIN:
            return PLAIN[name](*inputs)
        self.noted.setdefault(_key(name, inputs), (name, inputs))
        return operator(*inputs)

    def shipped(self, devices: Sequence[Device], place: torch.device) -> dict[Hashable, ShippedCall]:
        """The launches of all calls.

        Args:
            devices: see `shipped_launch`.
            place: the model's device.

        Raises:
            OperandError: an operator that is not shipped, or one in a form that is not.
            DeviceUnavailableError: no kernel runs for a call.
            ConfigError, CompileError: see `shipped_launch`.
        """
        unknown = sorted({name for name, _ in self.noted.values() if name not in PREPARED})
        if unknown:
            raise OperandError(
                f"the model calls {', '.join(f'sparsegen.{name}' for name in unknown)}, which cannot be shipped yet: "
                f"sparse layers, {', '.join(sorted(PREPARED))} can"
            )
        found = {}
        for key, (name, inputs) in self.noted.items():
            prepared = PREPARED[name](*inputs)
            if prepared is None:
                raise DeviceUnavailableError(
                    f"{name}: no kernel runs for {inputs[0].dtype} on {place} in the shapes of the example inputs, and "
                    "PyTorch computes it: move the model to a GPU with .cuda(), in float32, float16 or bfloat16 (or "
                    "set SPARSEGEN_DEVICE=emulator, to try on the CPU what is shipped)"
                )
            launch = shipped_launch(variant_launcher(prepared.operator), devices)
            found[key] = ShippedCall(launch, torch.from_numpy(launch.packed).to(place), prepared)
        return found


def stand_in_of(computed: Mapping[Hashable, Callable[[Sequence[Tensor]], object]]) -> Callable[..., object]:
    """A stand-in (`standing_in`) that computes calls by functions of their inputs."""

    def stand_in(name: str, inputs: tuple[Any, ...], operator: Callable[..., object]) -> object:
        if name in PLAIN:
            return PLAIN[name](*inputs)
        compute = computed.get(_key(name, inputs))
        if compute is None:
            raise OperandError(
                f"sparsegen.{name}: traced in a way that the first trace of the model did not take, and no program of "
                "it can be shipped"
            )
        return compute(inputs)

    return stand_in


def _key(name: str, inputs: tuple[object, ...]) -> Hashable:
    tensors = tuple(one for one in inputs if isinstance(one, Tensor))
    rest = tuple(
        Tensor if isinstance(one, Tensor) else tuple(one) if isinstance(one, list) else one for one in inputs
    )
    return name, kind_of(tensors), rest


def _stored(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An operand in the shape of the problem; words as int64, which all of PyTorch takes."""
    words = tensor.view(torch.int64) if tensor.dtype is torch.uint64 else tensor
    return words.contiguous().reshape(shape)
