"""A sparse linear layer for inference: one number of tokens, and nothing kept but what its kernel reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.direct import is_exporting
from sparsegen.integrations.torch.calls.prepared import Prepared
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.pattern.layer_products import layer_of, layer_product
from sparsegen.operators import QuantizedSparseOperator, SparseOperator
from sparsegen.system.device_bound import DeviceBound


class PreparedLinear(DeviceBound, nn.Module):
    """Y = activation(X · Wᵀ + bias) for a fixed number of tokens, without gradients; made by `SparseLinear.prepared`.

    W is kept as the kernel reads it, and as nothing else: no values, no indices. So there is no state dict; save the
    layer that it was made of. Calls launch one kernel, which a CUDA graph may capture after a first call, and read
    the bias of that layer. To `torch.compile` it is one operator.

    Attributes:
        in_features, out_features: see ``torch.nn.Linear``.
        tokens: tokens of a call, over all leading dimensions.
        operator: result of `sparsegen.prepare`: its ``explain()`` describes what runs, and why.
        handle: names the layer to its operator in compiled models.
    """

    instead = "copy or pickle the SparseLinear that it was made of"

    def __init__(
        self,
        operator: SparseOperator | QuantizedSparseOperator,
        bias: Tensor | None,
        activation: Activation = Activation.NONE,
    ) -> None:
        super().__init__()
        self.operator = operator
        problem = operator.problem
        self.out_features, self.in_features, self.tokens = problem.m, problem.k, problem.n
        self._bias = bias
        self._activation = activation  # the activation that the kernel leaves out
        self._run = Prepared(operator)
        self.handle = layer_of.name(self)

    @property
    def nbytes(self) -> int:
        """Bytes of W on the device."""
        return self.operator.nbytes

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """X of any leading dimensions that make `tokens`, the last of in_features.

        Raises:
            OperandError: another number of tokens or features, another dtype or device.
        """
        if is_dynamo_compiling() and not is_exporting():
            compiled: Tensor = layer_product(x, [self._bias], self.handle, self.out_features)
            return compiled
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """Computes `forward` where nothing traces it."""
        require_tensors(x=x)
        if x.shape[-1:] != (self.in_features,) or x.numel() != self.tokens * self.in_features:
            raise OperandError(
                f"x: expected {self.tokens} tokens × {self.in_features} features, got {tuple(x.shape)}; prepare a "
                "layer for each number of tokens, or call the SparseLinear itself"
            )
        y = self._activation.of(self._run(x.reshape(self.tokens, self.in_features), bias=self._bias))
        return y.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        variant = self.operator.variant
        what = "dense" if variant is None else variant.family
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, tokens={self.tokens}, "
            f"{what}, {self.nbytes} bytes"
        )

    def _save_to_state_dict(self, *args: object, **kwargs: object) -> None:
        raise OperandError("a PreparedLinear has no state: save the SparseLinear that it was made of")
