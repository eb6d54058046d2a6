"""A linear layer with a sparse weight."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from sparsegen import api, arguments
from sparsegen.dispatch.options import Dense, OnMiss
from sparsegen.errors import DeviceUnavailableError, MatrixError, OperandError, PruningError
from sparsegen.integrations.torch.calls.activations import Activation, epilogue_of
from sparsegen.integrations.torch.calls.autocast import autocast_dtype, is_any_autocast
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device, kernel_device_of
from sparsegen.integrations.torch.calls.direct import Asked, asked, is_compiled_inference
from sparsegen.integrations.torch.calls.layer_weights import (
    current_bias,
    current_weight,
    keep_hooks,
    trains,
)
from sparsegen.integrations.torch.calls.replacement import Replacement
from sparsegen.integrations.torch.calls.tensor_checks import no_tensor, require_parameter_dtype
from sparsegen.integrations.torch.pattern.compiled_layers import compiled_linear, traced_as
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.pattern.pattern_module import PatternModule, csr_tensor
from sparsegen.integrations.torch.pattern.prepared_linear import PreparedLinear
from sparsegen.integrations.torch.pattern.products import (
    linear,
    linear_again,
    linear_asked,
    linear_at_once,
)
from sparsegen.integrations.torch.pattern.shared_input import Part
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.foreign import describe
from sparsegen.measure.decision import ModelLayer
from sparsegen.operators import (
    Layout,
    Quantization,
    QuantizedMatrix,
    ScaleGroup,
    SpmmProblem,
    ValueType,
    quantized_as,
)
from sparsegen.pruning.pruner import prune
from sparsegen.pruning.request import PatternName
from sparsegen.tuning_db.records import MeasuredAs

DENSITY_STEP = 0.05  # layers whose densities round to the same multiple are decided together


class SparseLinear(PatternModule, Replacement):
    """Y = activation(X · Wᵀ + bias), like ``torch.nn.Linear``, with W stored and multiplied as its nonzeros.

    The values are a parameter and train; the pattern stays. While they require a gradient each call brings them to
    where the kernels read them; frozen (``requires_grad_(False)``) they are brought there once, and are constants to a
    CUDA graph. Where a dense product takes less time than any kernel, it runs, and its full weight follows the values
    (`SparsePattern.run_dense`). A state dict holds the pattern too (``row_offsets`` and ``column_indices``), and
    loading one takes it over: what was prepared for the old pattern goes, and calls prepare what they need for the new
    one. Under autocast the operands are cast like a dense layer's.

    Attributes:
        in_features, out_features: see ``torch.nn.Linear``.
        values: the nonzeros of W, row by row.
        bias: out_features, or None.
        activation: activation of the result; by default none. Without gradients the kernel computes it, if there is a
            bias, in compiled models too.
    """

    values: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        pattern: SparsePattern,
        *,
        bias: bool = True,
        activation: Activation | str = Activation.NONE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A layer of zeros on a pattern of out × in features; `from_dense` makes one of weights.

        Args:
            activation: activation of the result: ``"none"``, ``"relu"`` or ``"gelu"``.

        Raises:
            OperandError: arguments of other kinds.
        """
        arguments.instance(pattern, SparsePattern, "pattern", OperandError)
        bias = arguments.flag(bias, "bias", OperandError)
        if dtype is not None:
            require_parameter_dtype(dtype)
        super().__init__(pattern, device=device)
        self.out_features, self.in_features = pattern.shape
        self._shared: Part | None = None
        self.activation = activation
        self._hold_values(device, dtype)
        zeros = torch.zeros(self.out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if zeros is None else nn.Parameter(zeros))

    def _hold_values(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Values of zeros, as a parameter."""
        self.values = nn.Parameter(torch.zeros(self.pattern.nnz, device=device, dtype=dtype))

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear,
        mask: object = None,
        *,
        sparsity: float | None = None,
        pattern: PatternName | str = PatternName.UNSTRUCTURED,
        run_dense: Dense | str = Dense.AUTO,
        db: str | Path | None = None,
    ) -> SparseLinear:
        """The sparse layer with some of a dense one's weights, on its device and of its dtype, and with its hooks.

        The weights are those that the dense layer's next call would take, whatever makes them.

        Args:
            mask: out × in, of what `SparsePattern` takes; what is not zero stays, whether the weight there is zero or
                not. With neither mask nor sparsity the weights that are not zero stay.
            sparsity: share of weights to leave out, from 0 to below 1, instead of a mask: the smallest, in a pattern.
            pattern: see `sparsegen.prune`.
            run_dense: permission of dense products that take less time; see `SparsePattern`.
            db: the tuning database that calls look into, see `sparsegen.prepare`.

        Raises:
            PruningError: a mask and a sparsity, or a sparsity that cannot be met.
            MatrixError: a mask of another shape, or an additive one; NaN or infinity in a weight that is to be ranked.
        """
        arguments.instance(dense, nn.Linear, "dense", OperandError)
        weight = current_weight(dense)
        if mask is not None and sparsity is not None:
            raise PruningError("give a mask or a sparsity, not both")
        if sparsity is not None:
            mask = prune(weight, pattern=pattern, sparsity=sparsity).weights != 0
        kept: Any = weight != 0 if mask is None else mask
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            kept = torch.as_tensor(kept) if isinstance(kept, list | tuple) else kept
        shape = getattr(kept, "shape", None)
        if shape is None or tuple(shape) != tuple(weight.shape):
            got = describe(kept) if shape is None else f"one of shape {tuple(shape)}"
            raise MatrixError(f"expected a mask of shape {tuple(weight.shape)}, got {got}")
        return cls.on_pattern(dense, SparsePattern(kept, run_dense=run_dense, db=db))

    @classmethod
    def on_pattern(
        cls, dense: nn.Linear, pattern: SparsePattern, values: Tensor | None = None
    ) -> SparseLinear:
        """The sparse layer with a dense one's weights at the places of a pattern, on its device and of its dtype.

        Args:
            values: these weights, in CSR order, on any device, if they are at hand; else they are gathered.

        Raises:
            MatrixError: a pattern of another shape than the weight, or other than a value for each place.
            OperandError: arguments of other kinds.
        """
        arguments.instance(dense, nn.Linear, "dense", OperandError)
        arguments.instance(pattern, SparsePattern, "pattern", OperandError)
        weight = current_weight(dense)
        if pattern.shape != tuple(weight.shape):
            raise MatrixError(f"expected a pattern of shape {tuple(weight.shape)}, got {pattern.shape}")
        layer = cls(pattern, bias=dense.bias is not None, device=weight.device, dtype=weight.dtype)
        if values is None:
            rows = torch.repeat_interleave(layer.row_offsets.diff())
            values = weight[rows, layer.column_indices.long()]
        if values.shape != layer.values.shape:
            raise MatrixError(f"expected {pattern.nnz} values, got a tensor of shape {tuple(values.shape)}")
        with torch.no_grad():
            layer.values.copy_(values)
            layer.values.requires_grad_(trains(dense, "weight"))
            bias = current_bias(dense)
            if layer.bias is not None and bias is not None:
                layer.bias.copy_(bias)
                layer.bias.requires_grad_(trains(dense, "bias"))
        keep_hooks(dense, layer)
        return layer.train(dense.training)

    @property
    def activation(self) -> Activation:
        return self._activation

    @activation.setter
    def activation(self, activation: Activation | str) -> None:
        self._activation = Activation.parse(activation)
        self._describe()

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the weight."""
        return self.values.dtype

    @property
    def weight(self) -> Tensor:
        """The weight for code that reads that of a ``torch.nn.Linear``: a CSR tensor over the very values.

        Its dtype, device and shape are the dense layer's; ``.to_dense()`` makes the whole of it.
        """
        return csr_tensor(self.row_offsets, self.column_indices, self.values, self.pattern.shape)

    def to_dense(self) -> nn.Linear:
        """The ``torch.nn.Linear`` with the same weights, zeros included; an activation is not part of it."""
        kinds: dict[str, Any] = {"device": self.values.device, "dtype": self.values.dtype}
        dense = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, **kinds)
        rows, columns, _ = self.pattern.places(self.values.device)
        with torch.no_grad():
            dense.weight.zero_()
            dense.weight[rows, columns] = self.values
            if self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense.train(self.training)

    def prepared(
        self,
        tokens: int,
        *,
        on_miss: OnMiss | str = OnMiss.NEAREST,
        dense: Dense | str | None = None,
        probe: bool = True,
        l2: MeasuredAs | str | None = None,
        db: str | Path | None = None,
        value_type: ValueType | str | None = None,
        group: ScaleGroup | str | int = ScaleGroup.ROW,
        symmetric: bool = True,
    ) -> PreparedLinear:
        """The layer for inference with one number of tokens: its weights are packed for a kernel, and not followed.

        In place of this layer it frees the values and the pattern, which take more memory than the packed weights.

        Args:
            tokens: tokens of a call, over all leading dimensions.
            on_miss, probe, l2, db: see `sparsegen.prepare`.
            dense: likewise; default the pattern's ``run_dense``. Quantised weights have no dense product.
            value_type, group, symmetric: round the weights to codes and scales; see `sparsegen.quantize`, and
                `QuantizedLinear` for a layer that has a state and takes any number of tokens.

        Raises:
            DeviceUnavailableError: no kernel runs for this layer's dtype, or on its device.
            ConfigError: a group without a type of codes.
        """
        where = kernel_device_of(self.row_offsets.device) if self.dtype in DTYPES else None
        if where is None:
            raise DeviceUnavailableError(
                f"no kernel runs for {self.dtype} on {self.row_offsets.device}: move the layer to a GPU with .cuda() "
                "in float32, float16 or bfloat16"
            )
        operator = api.prepare(
            self._to_prepare(Quantization.parse(value_type, group, symmetric)),
            n=tokens,
            dtype=DTYPES[self.dtype],
            layout="column",
            epilogue=epilogue_of(self.activation, has_bias=self.bias is not None),
            on_miss=on_miss,
            dense=self.pattern.run_dense if dense is None else dense,
            probe=probe,
            l2=l2,
            device=where,
            db=self.pattern.db if db is None else db,
        )
        if self.bias is None:
            return PreparedLinear(operator, None, self.activation)
        return PreparedLinear(operator, self.bias.detach())

    def _to_prepare(self, rounding: Quantization | None) -> CsrMatrix | QuantizedMatrix:
        """The weight, rounded or as it is."""
        weight = self.pattern.matrix.with_values(self.values.detach().float().cpu().numpy())
        return weight if rounding is None else quantized_as(rounding, weight, DTYPES[self.dtype])

    def shares(self, part: Part | None) -> None:
        """Be one launch with other layers that read the same tensor (`SharedInput`), or with none again."""
        self._shared = part
        self._describe()

    def _describe(self) -> None:
        """Have calls and traces read this layer as it is now: a trace reads no object of it (`TracedAs`)."""
        self._is_shared = self._shared is not None
        self._traced_as = traced_as(self.pattern, self.out_features, self._activation.value, self._shared)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy's pattern has a handle of its own."""
        restored: Callable[[dict[str, Any]], None] = super().__setstate__
        restored(state)
        self._describe()

    @property
    def part(self) -> Part | None:
        """The part that computes this layer's result in its place; None where it computes its own."""
        return self._shared

    @property
    def one_launch_with(self) -> tuple[SparseLinear, ...]:
        """See `Replacement`."""
        return () if self._shared is None else self._shared.layers

    @property
    def run_dense(self) -> Dense:
        """The pattern's, see `SparsePattern`."""
        return self.pattern.run_dense

    @run_dense.setter
    def run_dense(self, policy: Dense) -> None:
        self.pattern.run_dense = policy

    def size(self) -> tuple[tuple[int, int], int]:
        """Rows and columns of the weight, and its nonzeros."""
        return self.pattern.shape, self.pattern.nnz

    def likeness(self) -> tuple[object, ...]:
        """See `Replacement`."""
        density = round((1 - self.pattern.sparsity) / DENSITY_STEP)
        return self.pattern.shape, density, self.bias is None, self.dtype

    def looked_up(self, tokens: int) -> ModelLayer | None:
        """See `Replacement`."""
        device = kernel_device(self.values)
        if device is None or not tokens:
            return None
        epilogue = epilogue_of(Activation.NONE, has_bias=self.bias is not None)
        problem = SpmmProblem(*self.pattern.shape, tokens, DTYPES[self.values.dtype], Layout.COLUMN, epilogue)
        return ModelLayer.of(problem, self.pattern.matrix, device, self.pattern.db)

    def forget(self) -> None:
        """Free all that was prepared; see `SparsePattern.forget`."""
        self.pattern.forget()

    def forward(self, x: Tensor) -> Tensor:
        """X of any number of leading dimensions, the last of in_features; or a jagged nested tensor of such rows.

        Raises:
            OperandError: a shape, dtype or device that does not fit.
        """
        if not isinstance(x, Tensor):
            raise no_tensor(x, "x")
        if x.is_nested:
            return self._of_nested(x)
        if self._is_shared and (self._traced_as is None or not is_dynamo_compiling()):
            assert self._shared is not None
            part = self._shared(x)
            if part is not None:
                return part
        # PyTorch's way to an attribute takes longer, and is for what stands in a parameter's place.
        own: dict[str, Any] = self._parameters
        values, bias = own.get("values"), own.get("bias")
        if values is None:
            values, bias = self.values, self.bias
        dtype = autocast_dtype(x) if is_any_autocast() else None
        casts = dtype is not None
        if casts:
            x = x.to(dtype)
        elif values.requires_grad and torch.is_grad_enabled():
            y = linear_again(x, values, bias, self.pattern)
            if y is not None:
                return y if self._activation is Activation.NONE else self._activation.of(y)
        what = asked(x, values, bias)
        if what is Asked.NOTHING and x.dim() > 1:
            return linear_at_once(x, values, bias, self.pattern, self._activation, casts=casts)
        layer = self._traced_as if what is Asked.MORE and x.dim() > 1 else None
        if layer is not None and is_compiled_inference(x, values, bias, casts=casts):
            return compiled_linear(x, values, bias, layer, casts=casts)
        if casts:
            values, bias = values.to(x.dtype), None if bias is None else bias.to(x.dtype)
        if x.dim() > 1:
            return linear_asked(what, x, values, bias, self.pattern, self._activation)
        return linear(x[None], values, self.pattern, bias, self._activation)[0]

    def _of_nested(self, x: Tensor) -> Tensor:
        """Multiplies a jagged nested tensor, whose rows are one product; the result has its lengths."""
        if x.layout is not torch.jagged or x.dim() != 3:
            raise OperandError(
                f"x: a nested tensor of layout {x.layout} and {x.dim()} dimensions: make it with layout=torch.jagged, "
                "of parts that are tokens × features"
            )
        nested: Any = x
        rows = self(nested.values())
        made: Tensor = torch.nested.nested_tensor_from_jagged(rows, nested.offsets(), nested.lengths())
        return made

    def extra_repr(self) -> str:
        dense_bytes = self.pattern.dense_bytes
        dense = f", full weight of {dense_bytes} bytes for dense products" if dense_bytes else ""
        activation = "" if self.activation is Activation.NONE else f", activation={self.activation}"
        shared = "" if self._shared is None else f", one launch for {len(self._shared.layers)} layers"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
            f"{activation}, nonzeros={self.pattern.nnz} ({self.pattern.sparsity:.1%} sparse){dense}{shared}"
        )

    def _take_pattern(self, pattern: SparsePattern) -> None:
        """Another pattern; the parameter stays the same object, as an optimizer holds it, with zeros for values."""
        super()._take_pattern(pattern)
        self._describe()
        self.values.data = self.values.new_zeros(pattern.nnz)
        self.values.grad = None
