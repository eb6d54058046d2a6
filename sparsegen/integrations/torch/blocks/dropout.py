"""Structured dropout of blocks, and a linear layer behind it that skips what is dropped.

A. Lo, Efficient Sparse Training with Structured Dropout.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, mask_of
from sparsegen.integrations.torch.blocks.dropout_choice import masked_products_pay
from sparsegen.integrations.torch.blocks.dropout_steps import (
    DenseStep,
    DropoutStep,
    MaskedStep,
    Steps,
    kind_of_step,
)
from sparsegen.integrations.torch.blocks.dropped_blocks import HOST_BOUND, dropped
from sparsegen.integrations.torch.blocks.mask_launches import independent
from sparsegen.integrations.torch.blocks.mask_states import new_state
from sparsegen.integrations.torch.blocks.masked_products import dsd
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.autocast import autocast_dtype, is_any_autocast
from sparsegen.integrations.torch.calls.direct import PLAIN, Asked, asked, is_watched
from sparsegen.integrations.torch.calls.layer_weights import keep_hooks, own_parameters
from sparsegen.integrations.torch.calls.like_before import LATEST
from sparsegen.integrations.torch.calls.monte_carlo import MonteCarloDropout, checked_probability
from sparsegen.integrations.torch.calls.prepared import MISALIGNED, is_capturing
from sparsegen.integrations.torch.calls.tensor_checks import (
    checked_device,
    require_parameter_dtype,
    require_real,
    require_tensors,
)
from sparsegen.matrix.block_mask_draw import MaskDraw
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.operators import Block

USUAL_TOKENS = 4096  # of which a compiled graph for any number of tokens asks what is faster


def block_dropout(x: Tensor, p: float = 0.5, block: object = 128, training: bool = True) -> Tensor:
    """X with blocks set to zero, each with probability p and independently, and the others divided by 1 - p.

    Args:
        x: any number of leading dimensions, which together are rows.
        p: in [0, 1).
        block: rows and columns of a block, one number for both, or text such as ``"128x64"``; the last blocks are cut
            off where it does not divide them.
        training: otherwise x is returned as it is.

    Raises:
        OperandError: no floating-point tensor, p out of range, or a block that is none.
    """
    p, sides = checked_probability(p), checked_block(block)
    require_tensors(x=x)
    require_real(x, "x")
    if not x.dim():
        raise OperandError("x: expected at least one dimension, got a single number")
    if not arguments.flag(training, "training", OperandError) or p == 0:
        return x
    return dropped(x, new_state(x.device), p, sides)


class DropoutLinear(MonteCarloDropout, nn.Linear):
    """Structured dropout and a linear layer in one, in place of ``Sequential(Dropout(p), Linear(...))``.

    While it trains, blocks of the input are dropped, each with probability p, and neither the product nor its gradients
    read or compute them; with p = 0 or in evaluation it is the dense layer, unless `mc_dropout` has it drop there too.
    Where dense products are faster, which is tried when sizes are first met (`masked_products_pay`), they run, with the
    same masks, unless ``dense`` says otherwise. The masks come from PyTorch's generator of the input's device:
    `torch.manual_seed`, checkpoints and CUDA graphs do as with its dropout.

    Where dense products run, factors of several short steps are drawn at once, and up to 17 MB of them wait.

    With ``own_seed``, the generator gives the layer a seed when it first trains on a device, and the layer counts its
    masks itself. Before masked products one kernel less is launched then, and the mask is drawn while the kernel before
    still runs. Later `torch.manual_seed` has no effect on it, and checkpoints cannot compute it a second time.

    Attributes:
        in_features, out_features, weight, bias: see ``torch.nn.Linear``; so are its state dict and initial values.
        p: probability to drop a block.
        block: its rows (tokens, over all leading dimensions) and columns (features).
        activation: ``none``, ``relu`` (stored by the kernel) or ``gelu`` (the exact one, after it).
        own_seed: true if masks come from a seed of the layer's own.
        dense: permission of dense products: ``"auto"`` where they take less time, ``"never"`` or ``"always"``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        p: float = 0.5,
        block: object = 128,
        *,
        bias: bool = True,
        activation: Activation | str = Activation.NONE,
        own_seed: bool = False,
        dense: Dense | str = Dense.AUTO,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """
        Raises:
            OperandError: an argument out of range, or a device that PyTorch cannot use.
            ConfigError: a word for ``dense`` that is none.
        """
        self.dense = Dense.parse(dense)
        self.p, self.block = checked_probability(p), checked_block(block)
        self.activation = Activation.parse(activation)
        self.own_seed = arguments.flag(own_seed, "own_seed", OperandError)
        self._state: Tensor | None = None
        self._steps = Steps()
        in_features = arguments.whole(in_features, "in_features", OperandError, least=0, most=MAX_INDEX)
        out_features = arguments.whole(out_features, "out_features", OperandError, least=0, most=MAX_INDEX)
        bias = arguments.flag(bias, "bias", OperandError)
        device = checked_device(device)
        if dtype is not None:
            require_parameter_dtype(dtype)
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        p: float = 0.5,
        block: object = 128,
        *,
        activation: Activation | str = Activation.NONE,
        own_seed: bool = False,
        dense: Dense | str = Dense.AUTO,
    ) -> DropoutLinear:
        """The layer with a linear one's parameters, which both then share."""
        arguments.instance(linear, nn.Linear, "linear", OperandError)
        has_bias = linear.bias is not None
        layer = cls(
            linear.in_features,
            linear.out_features,
            p,
            block,
            bias=has_bias,
            activation=activation,
            own_seed=own_seed,
            dense=dense,
            device="meta",
        )
        layer.weight, layer.bias = own_parameters(linear)
        keep_hooks(linear, layer)
        return layer.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to X, ... × in_features.

        Raises:
            OperandError: no tensor of ``in_features`` features, or of another dtype than the weight; a layer with a
                seed of its own is computed again by a checkpoint, or trains for the first time while a CUDA graph is
                captured.
        """
        if type(x) not in PLAIN or x.layout is not torch.strided:
            require_tensors(x=x)
        # PyTorch's way to an attribute takes longer, and is for what stands in a parameter's place.
        own: dict[str, Any] = self._parameters
        weight: Tensor
        bias: Tensor | None
        weight, bias = (own["weight"], own["bias"]) if "weight" in own else (self.weight, self.bias)
        autocasts = is_any_autocast()
        if not autocasts and self.drops and torch.is_grad_enabled() and not is_watched():
            found = self._again(x, weight, bias)
            if found is not None:
                return found
        *lead, features = x.shape or (0,)
        if not x.dim() or features != self.in_features:
            raise OperandError(f"x: expected ... × {self.in_features} features, got shape {tuple(x.shape)}")
        cast = autocast_dtype(x) if autocasts else None
        if cast is None and x.dtype is not weight.dtype:
            raise OperandError(
                f"x: expected {weight.dtype}, as the layer's weight is, got {x.dtype}; use x.to({weight.dtype})"
            )
        if not self.drops or self.p == 0 or not x.numel():  # no mask has no blocks
            return self.activation.of(functional.linear(x, weight, bias))
        dtype = x.dtype if cast is None else cast
        tokens, p = math.prod(lead), self.p
        asked_of = tokens
        if (
            torch.compiler.is_dynamo_compiling()
        ):  # which makes symbols of numbers, where a decision needs these
            p = float.fromhex(p.hex())
            asked_of = operator.index(tokens) if _is_static(tokens) else USUAL_TOKENS
        sizes = asked_of, self.in_features, self.out_features
        # The state names the mask, whichever products run.
        state = self._own_state(x.device) if self.own_seed else new_state(x.device)
        fuses = self._fuses
        facts = self.block, p, dtype, str(x.device), bias is not None, fuses, self.own_seed
        asks = *sizes, *facts, str(self.dense)
        if not masked_products_pay(*asks):
            state = self._counted(state) if self.own_seed else state
            kept = dropped(x, state, p, self.block)
            self._plan(asks, (x, weight, bias), state, None)
            return self.activation.of(functional.linear(kept, weight, bias))
        draw = MaskDraw(p) if torch.compiler.is_dynamo_compiling() else independent(p)
        mask = mask_of(state, (tokens, features), self.block, draw, early=self.own_seed)
        rows = x if len(lead) == 1 else x.reshape(tokens, features)
        if cast is not None:
            rows, weight, bias = rows.to(cast), weight.to(cast), None if bias is None else bias.to(cast)
        y = dsd(rows, weight, mask, bias, scale=1 / mask.density, relu=fuses, dense="never")
        y = y if len(lead) == 1 else y.reshape(*lead, self.out_features)
        self._plan(asks, (x, weight, bias), state, mask)
        return y if fuses else self.activation.of(y)

    @property
    def _fuses(self) -> bool:
        """True if the product computes the activation."""
        return self.activation is Activation.RELU and self.bias is not None

    def _counted(self, state: Tensor) -> Tensor:
        """The layer's own state for a mask which no kernel of ours draws, and counts; the gradient needs it."""
        named = state.clone()
        state[1].add_(1)
        return named

    def _again(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """The result of a call like one before that asked for a gradient; None of all others."""
        steps, settings = self._steps, (self.p, self.block, self.activation, self.own_seed, self.dense)
        step = steps.get(LATEST)
        if step is None:
            return None
        if not step.is_for(settings, x, weight, bias):
            step = steps.get(kind_of_step(x))
            if step is None or not step.is_for(settings, x, weight, bias):
                return None
            steps[LATEST] = step
        if not self.own_seed:
            state = step.new_state()
        else:
            state = self._own_state(x.device)
            state = state if step.is_masked else self._counted(state)
        y = step(x, weight, bias, state)
        return y if self.activation is Activation.NONE or step.activates else self.activation.of(y)

    def _plan(
        self,
        asks: tuple[Any, ...],
        given: tuple[Tensor, Tensor, Tensor | None],
        state: Tensor,
        mask: BlockMaskTensor | None,
    ) -> None:
        """Have the next call like this one, which was computed, go by launches that are found once.

        Args:
            asks: arguments of `masked_products_pay`.
            mask: of masked products; None of dense ones.
        """
        if is_watched() or is_any_autocast() or asked(*given) is not Asked.GRADIENT:
            return
        x = given[0]
        if is_capturing(x) or not x.is_contiguous() or x.data_ptr() & MISALIGNED or not x.numel():
            return

        pays = partial(masked_products_pay, *asks) if self.dense is Dense.AUTO else None
        settings = self.p, self.block, self.activation, self.own_seed, self.dense
        step: DropoutStep
        if mask is not None:
            step = MaskedStep(settings, pays, given, state, mask, early=self.own_seed, relu=self._fuses)
        elif x.numel() <= HOST_BOUND:
            step = DenseStep(settings, pays, given, state)
        else:
            return
        if step.takes_all:
            self._steps[kind_of_step(x)] = self._steps[LATEST] = step

    def _own_state(self, device: torch.device) -> Tensor:
        """The layer's seed and the step of its next mask, on a device."""
        is_eager = not torch.compiler.is_compiling()
        if is_eager and torch._C._current_graph_task_id() != -1:
            raise OperandError(
                "a layer with own_seed=True cannot be computed again in the backward pass, as its mask would be "
                "another one: take own_seed=False inside of checkpoints"
            )
        if self._state is None or self._state.device != device:
            if is_eager and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise OperandError("call a layer with own_seed=True once before a CUDA graph is captured")
            with torch.inference_mode(False):  # it may be counted on outside of it
                self._state = new_state(device)
        return self._state

    def extra_repr(self) -> str:
        block = f"{self.block[0]}x{self.block[1]}"
        own = ", own_seed=True" if self.own_seed else ""
        own += "" if self.dense is Dense.AUTO else f", dense={self.dense}"
        return f"{super().extra_repr()}, p={self.p}, block={block}, activation={self.activation}{own}"


def _is_static(number: int) -> bool:
    """True of a number that a compiler takes as it meets it; before PyTorch 2.7 that is any."""
    from torch.fx.experimental import symbolic_shapes  # the compiler's, which take long to import

    return getattr(symbolic_shapes, "has_static_value", lambda _: True)(number)


def checked_block(block: object) -> tuple[int, int]:
    """Rows and columns of a block.

    Raises:
        OperandError: sides that no kernel has; the message says which there are.
    """
    found = Block.named(block, "block", OperandError)
    return found.rows, found.columns
