"""A linear layer with a sparse weight of 8- or 4-bit codes and scales, for inference with any number of tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from sparsegen import arguments
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import Dense
from sparsegen.errors import ConfigError, NoVariantError, OperandError
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.autocast import autocast_dtype
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.direct import Asked, asked, is_compiled_inference
from sparsegen.integrations.torch.calls.either import Compute, chosen
from sparsegen.integrations.torch.calls.layer_weights import keep_hooks
from sparsegen.integrations.torch.calls.weight_state import WeightState, unchanged, weight_state
from sparsegen.integrations.torch.pattern.dense_codes import DenseCodes, DenseProduct, way_of
from sparsegen.integrations.torch.pattern.layer_products import layer_of, layer_product
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.pattern.prepared_linear import PreparedLinear
from sparsegen.integrations.torch.pattern.products import linear_at_once
from sparsegen.kernels.base import Device
from sparsegen.kernels.layouts.lane_stream_config import MAX_N
from sparsegen.measure.decision import Entrants, decide
from sparsegen.operators import Quantization, QuantizedMatrix, ScaleGroup, ValueType, quantized_as
from sparsegen.plan.expanded_codes import ExpandedCodes
from sparsegen.plan.lasting_tensors import lasting
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.system.cuda_graphs import is_capturing
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.records import Task

log = logging.getLogger(__name__)

CALLS = 4  # in a row from Python, as of a model's layers


class QuantizedLinear(SparseLinear):
    """`SparseLinear` whose values are codes times the scales of their groups, which stay as they are; for inference.

    Few tokens are multiplied by the codes, in compiled models too. More than any such kernel takes, other dtypes, and
    calls that ask for a gradient or an export are multiplied by the unquantised values, which are worked out of the
    codes once and kept; so are few tokens where a race at their first call shows that this takes less time. A second
    race is with a dense product of the codes (`dense_codes`). `why` says what runs. A layer that `expands` keeps no
    unquantised values for many tokens: each call expands the packed codes to a full weight, which a dense product reads
    and which then goes back to PyTorch's memory.

    Attributes:
        rounding: types of codes and groups of scales.
        codes: uint8, those of the nonzeros row by row; of 4 bits two in a byte, the first in its lower half.
        scales: groups × out_features.
        zero_points: likewise, int8: the codes that stand for zero; None of symmetric codes.
        code_format: bits of a code, whether it is floating point, columns of a group or 0, and whether there are zero
            points; so that a state dict of
            another format is not taken for one of this.
        expands: see above; by default false, as it takes longer than values that are kept.
        handle: names the layer to its operator in compiled models.
        rounding_error: error of the values' norm, of a layer that `from_sparse` made; else None.
    """

    codes: Tensor
    scales: Tensor
    zero_points: Tensor | None
    code_format: Tensor
    rounding: Quantization
    expands: bool = False

    def __init__(
        self,
        pattern: SparsePattern,
        rounding: Quantization,
        *,
        bias: bool = True,
        activation: Activation | str = Activation.NONE,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        """A layer of zeros, for a state dict to be loaded into; `from_sparse` and `from_matrix` make one of weights.

        Raises:
            OperandError: arguments of other kinds.
        """
        arguments.instance(rounding, Quantization, "rounding", OperandError)
        super().__init__(pattern, bias=bias, activation=activation, device=device, dtype=dtype)
        device = self.row_offsets.device
        self.rounding = rounding
        zeros = torch.zeros((rounding.group.number(self.in_features), self.out_features), dtype=dtype)
        codes = np.zeros(pattern.nnz, dtype=np.float32)
        self.register_buffer("codes", _stored(codes, rounding.value_type).to(device=device))
        self.register_buffer("scales", zeros.to(device=device))
        points = None if rounding.symmetric else torch.zeros(zeros.shape, dtype=torch.int8, device=device)
        self.register_buffer("zero_points", points)
        self.register_buffer("code_format", _format(rounding).to(device=device))
        self.requires_grad_(False)
        self._forget()
        self.handle = layer_of.name(self)

    @classmethod
    def from_sparse(cls, layer: SparseLinear, rounding: Quantization) -> QuantizedLinear:
        """Rounds the values of a layer, in its place; it stays as it is, and they share its pattern.

        The new layer has its dtype; codes are multiplied once that is float16 or bfloat16 (`takes_codes`).

        Raises:
            ConfigError: scales that its dtype does not hold: see `sparsegen.quantize`.
            OperandError: arguments of other kinds.
        """
        arguments.instance(layer, SparseLinear, "layer", OperandError)
        arguments.instance(rounding, Quantization, "rounding", OperandError)
        weight = layer.pattern.matrix.with_values(layer.values.detach().float().cpu().numpy())
        matrix = quantized_as(rounding, weight, DTYPES[_narrow(layer.values.dtype)])
        device, dtype = layer.values.device, layer.values.dtype
        made = cls._of(matrix, layer.pattern, layer.bias, layer.activation, device, dtype)
        made.rounding_error = matrix.rounding_error(weight)
        keep_hooks(layer, made)
        return made.train(layer.training)

    @classmethod
    def from_matrix(
        cls,
        matrix: QuantizedMatrix,
        bias: Tensor | None = None,
        *,
        activation: Activation | str = Activation.NONE,
        run_dense: Dense | str = Dense.AUTO,
        device: torch.device | str | None = None,
    ) -> QuantizedLinear:
        """The layer with a quantised weight of out × in features, as `sparsegen.load_quantized` reads it.

        Args:
            bias: out_features.
            run_dense: see `SparsePattern`.

        Raises:
            OperandError: a bias of another shape, or arguments of other kinds.
        """
        arguments.instance(matrix, QuantizedMatrix, "matrix", OperandError)
        if bias is not None and tuple(bias.shape) != matrix.shape[:1]:
            raise OperandError(f"bias: expected {matrix.shape[0]} values, got {tuple(bias.shape)}")
        pattern = SparsePattern(matrix.codes, run_dense=run_dense)
        return cls._of(matrix, pattern, bias, Activation.parse(activation), device)

    @classmethod
    def _of(
        cls,
        matrix: QuantizedMatrix,
        pattern: SparsePattern,
        bias: Tensor | None,
        activation: Activation,
        device: torch.device | str | None,
        dtype: torch.dtype | None = None,
    ) -> QuantizedLinear:
        dtype = getattr(torch, matrix.dtype.value) if dtype is None else dtype
        made = cls(
            pattern, matrix.rounding, bias=bias is not None, activation=activation, device=device, dtype=dtype
        )
        made.codes.copy_(_stored(matrix.codes.values, matrix.value_type))
        made.scales.copy_(torch.from_numpy(np.array(matrix.scales)))
        if made.zero_points is not None:
            made.zero_points.copy_(torch.from_numpy(np.array(matrix.zero_points)))
        if made.bias is not None and bias is not None:
            made.bias.copy_(bias.detach())
        return made

    def _hold_values(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Codes and scales stand for the values."""

    def _forget(self) -> None:
        """Drop all that was made of codes and scales."""
        self._state: list[WeightState] = []
        self._values: Tensor | None = None
        self._computes: dict[tuple[object, ...], Compute] = {}
        self._of_codes: dict[int, PreparedLinear] = {}
        self._expand: ExpandedCodes | None = None
        self._whys: dict[int, str] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the scales, and of activations that the codes are multiplied with."""
        return self.scales.dtype

    @property
    def takes_codes(self) -> bool:
        """True of a dtype in which codes are multiplied; others take the unquantised values."""
        return _narrow(self.dtype) is self.dtype

    @property
    def values(self) -> Tensor:  # type: ignore[override,unused-ignore]  # a parameter of layers that train
        """The nonzeros of W, row by row, rounded to the scales' dtype; kept until codes or scales change."""
        if asked(self.codes, self.scales) is Asked.MORE:  # a trace: its tensors are none to keep
            return self._dequantised()
        self._follow()
        if self._values is None:
            self._values = lasting(torch, self._dequantised, self.codes.device)
        return self._values

    def _dequantised(self) -> Tensor:
        size = self.rounding.group.size(self.in_features)
        rows = torch.repeat_interleave(self.row_offsets.diff(), output_size=self.pattern.nnz)
        place = self.column_indices // size, rows
        numbers = self._numbers() if self.zero_points is None else self._numbers() - self.zero_points[place]
        return (numbers * self.scales.float()[place]).to(self.scales.dtype)

    def matrix(self) -> QuantizedMatrix:
        """The weight as `sparsegen.prepare` takes it; its scales are of the layer's dtype.

        Raises:
            OperandError: a layer of another dtype than float16 and bfloat16.
        """
        if not self.takes_codes:
            raise OperandError(
                f"codes are multiplied in float16 or bfloat16: .half() the layer ({self.dtype})"
            )
        return QuantizedMatrix(
            self.pattern.matrix.with_values(self._numbers().cpu().numpy()),
            self.scales.float().cpu().numpy(),
            self.rounding.value_type,
            self.rounding.group,
            DTYPES[self.dtype],
            None if self.zero_points is None else self.zero_points.float().cpu().numpy(),
        )

    def why(self, tokens: int) -> str:
        """Says what the calls with a number of tokens multiply by, and why; empty before the first of them."""
        return self._whys.get(tokens, "")

    def of_codes(self, tokens: int, dtype: torch.dtype) -> PreparedLinear | None:
        """The layer that multiplies a number of tokens by codes where the device's time alone counts; or None."""
        return self._of_codes.get(tokens) if dtype is self.dtype else None

    def _numbers(self) -> Tensor:
        """The codes as numbers, float32."""
        kind = self.rounding.value_type
        if kind is ValueType.E4M3:
            return self.codes.view(torch.float8_e4m3fn).float()
        return self._bytes().float() + kind.smallest

    def _bytes(self) -> Tensor:
        """The codes, one in each byte."""
        if self.rounding.value_type.bits == 8:
            return self.codes
        return torch.stack((self.codes & 15, self.codes >> 4), dim=1).flatten()[: self.pattern.nnz]

    def _follow(self) -> None:
        """Forget what was made of codes and scales that have changed."""
        held = self.codes, self.scales, self.zero_points
        if not (self._state and unchanged(held, self._state)):
            self._forget()
            self._state = [weight_state(tensor) for tensor in held]

    def forward(self, x: Tensor) -> Tensor:
        """See `SparseLinear.forward`."""
        if not isinstance(x, Tensor) or x.is_nested:
            return super().forward(x)
        if self._shared is not None:
            part = self._shared(x)
            if part is not None:
                return part
        cast = autocast_dtype(x)
        given = x if cast is None else x.to(cast)
        scales, bias = self.scales, self.bias
        if asked(given, scales, bias) is Asked.NOTHING:
            return self.product(given)
        if given.dim() > 1 and is_compiled_inference(given, scales, bias, casts=cast is not None):
            weights = [self.codes, scales, self.zero_points, bias]
            y: Tensor = layer_product(given, weights, self.handle, self.out_features)
            return y
        return super().forward(x)

    def product(self, x: Tensor) -> Tensor:
        """Returns the result of a call that asks for nothing else: no gradient and no trace."""
        if x.dim() > 1 and x.numel():
            flat = x.reshape(-1, x.shape[-1]) if x.dim() > 2 else x
            compute = self._compute(flat)
            if compute is not None:
                y = compute(flat)
                return y if x.dim() == 2 else y.reshape(*x.shape[:-1], self.out_features)
        return super().forward(x)

    def _compute(self, x: Tensor) -> Compute | None:
        """Multiplication for the tokens of x; None where only the unquantised values take it."""
        where = kernel_device(x)
        if where is None or x.shape[-1] != self.in_features or x.dtype != self.dtype:
            return None
        self._follow()
        key = x.shape[0], x.device, self.activation, self.bias is None, self.expands
        if key not in self._computes:
            self._computes[key] = self._chosen(x, where)
        return self._computes[key]

    def _chosen(self, x: Tensor, where: Device) -> Compute:
        tokens = x.shape[0]
        if _narrow(x.dtype) is not x.dtype:
            self._say(tokens, f"the unquantised values: codes are multiplied in 16 bits, not in {x.dtype}")
            return self._unquantised
        try:
            ours = self._prepared_for_few(tokens)
        except NoVariantError as error:
            if self.expands:
                self._say(tokens, f"the full weight, which each call expands from the codes: {error}")
                return self._multiplied_full
            self._say(tokens, f"the unquantised values: {error}")
            return self._unquantised
        found, decision = self._raced(ours, x, where, ours.forward, self._unquantised)
        if decision is not None and decision.on_device:
            self._of_codes[tokens] = ours
        fastest = self._or_dense(ours, x, where, found)
        if decision is not None and decision.ours_runs() and decision.is_settled and len(self._whys) == 1:
            self._values = None  # only races had them
        return fastest

    def _prepared_for_few(self, tokens: int) -> PreparedLinear:
        """The layer that multiplies codes by a number of tokens that tensor cores do it for.

        Raises:
            NoVariantError: there are more, or no kernel may run.
        """
        if tokens > MAX_N:
            raise NoVariantError(f"{tokens} tokens are more than {MAX_N}")
        return self.prepared(tokens)

    def _raced(
        self, ours: PreparedLinear, x: Tensor, where: Device, found: Compute, other: Compute, name: str = ""
    ) -> tuple[Compute, Decision | None]:
        """Returns what computes calls like this one: what was found, or another way that our kernel loses to.

        Args:
            name: what the other way multiplies by; empty of the unquantised values.
        """
        tokens, operator, compute = x.shape[0], ours.operator, ours.forward

        def enter() -> Entrants:
            pair = partial(compute, x), partial(other, x)
            return Entrants(variant_launcher(operator).variant, lambda _: pair, CALLS)

        question: Callable[[], Decision | None] = partial(
            decide,
            Task.PRODUCT,
            operator.problem,
            where,
            enter,
            self.pattern.run_dense,
            self.pattern.matrix,
            name,
        )
        fastest, decision = chosen(question, lambda: found, other), question()
        if decision is not None:
            runs = decision.ours_runs()
            what = f"the {'codes' if runs else name or 'unquantised values'}: {decision.why}"
            before = self.why(tokens) if name and runs else ""
            self._say(
                tokens, f"{before}; not the {name}: {decision.why}" if before else what, log_it=not runs
            )
        return fastest, decision

    def _or_dense(self, ours: PreparedLinear, x: Tensor, where: Device, found: Compute) -> Compute:
        """Returns what was found, or a dense product of the same codes where our kernel loses to it."""
        way = way_of(self.rounding, self.pattern.shape, x.dtype, x.device)
        if way is None or self.pattern.run_dense is not Dense.AUTO or is_capturing():
            return found
        name, make = way
        dense = DenseProduct(make, self._dense_codes, self._unquantised)
        try:
            fastest, _ = self._raced(ours, x, where, found, dense, f"dense codes by {name}")
            if fastest is not found:
                dense(x)  # made now: a capture, which can load nothing, may be the first to need it
        except Exception as error:  # whatever another library raises
            log.warning("%s does not multiply weights of %s here: %s", name, self.rounding, error)
            return found
        return fastest

    def _dense_codes(self) -> DenseCodes:
        """The weight with its zeros, where codes and scales are."""
        kind = self.rounding.value_type
        zero = 0 if kind is ValueType.E4M3 else int(-kind.smallest)
        points = None if self.zero_points is None else (self.zero_points.T + zero).to(torch.uint8)
        size = self.rounding.group.size(self.in_features)
        if points is None:
            codes = self.codes.new_full(self.pattern.shape, zero)
        else:
            codes = points.repeat_interleave(size, dim=1)[:, : self.in_features].contiguous()
        rows = torch.repeat_interleave(self.row_offsets.diff(), output_size=self.pattern.nnz)
        codes[rows, self.column_indices] = self._bytes()
        scales = self.scales.T.contiguous()
        return DenseCodes(codes, scales, points, self.bias, self.activation, self.rounding)

    @torch.no_grad()
    def _multiplied_full(self, x: Tensor) -> Tensor:
        return self.activation.of(linear(x, self._full_weight(), self.bias))

    def _full_weight(self) -> Tensor:
        """Expands the packed codes to out × in features."""
        if self._expand is None:
            prepared = next(iter(self._of_codes.values()), None) or self.prepared(1)
            matrix = self.matrix()
            variant = variant_launcher(prepared.operator).prepared
            self._expand = ExpandedCodes(variant, matrix.scales, matrix.zero_points)
        if self._expand.executor.device.backend != "cuda":
            stored = torch.from_numpy(self._expand.weights().view(np.int16))
            return stored.view(self.dtype)
        device = self.scales.device
        full = torch.empty(self.pattern.shape, dtype=self.dtype, device=device)
        with torch.cuda.device(device):
            self._expand.bound()(torch.cuda.current_stream(device).cuda_stream, full.data_ptr())
        return full

    def _unquantised(self, x: Tensor) -> Tensor:
        return linear_at_once(x, self.values, self.bias, self.pattern, self.activation)

    def _say(self, tokens: int, what: str, *, log_it: bool = True) -> None:
        self._whys[tokens] = what
        if log_it:
            log.info("%d × %d weights of %s: %s", *self.pattern.shape, self.rounding, what)

    def extra_repr(self) -> str:
        others = sorted(tokens for tokens, why in self._whys.items() if why.startswith("the unquantised"))
        unquantised = f", unquantised for {', '.join(map(str, others))} tokens" if others else ""
        return f"{super().extra_repr()}, {self.rounding}{unquantised}"

    def _apply(self, *args: object, **kwargs: object) -> object:
        self._forget()
        applied: Callable[..., object] = super()._apply
        return applied(*args, **kwargs)

    def __getstate__(self) -> dict[str, object]:
        kept = dict(self.__dict__)
        return kept | {
            "_state": [],
            "_values": None,
            "_computes": {},
            "_of_codes": {},
            "_expand": None,
            "_whys": {},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        restored: Callable[[dict[str, Any]], None] = super().__setstate__
        restored(state)
        self.handle = layer_of.name(self)  # a copy is another layer

    def _to_prepare(self, rounding: Quantization | None) -> QuantizedMatrix:
        """
        Raises:
            ConfigError: other codes are asked for.
            OperandError: see `matrix`.
        """
        if rounding not in (None, self.rounding):
            raise ConfigError(
                f"the layer has codes of {self.rounding}, not of {rounding}: round a SparseLinear"
            )
        return self.matrix()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        found: Any = state_dict.get(f"{prefix}code_format")
        if isinstance(found, Tensor) and found.tolist() != self.code_format.tolist():
            errors: list[str] = args[-1]
            errors.append(f"{prefix}codes: expected the format {self.rounding}, got another")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _take_pattern(self, pattern: SparsePattern) -> None:
        """Another pattern, with zeros for codes."""
        super(SparseLinear, self)._take_pattern(pattern)
        empty = _stored(np.zeros(pattern.nnz, dtype=np.float32), self.rounding.value_type)
        self.codes = empty.to(self.codes.device)
        self._forget()


def _format(rounding: Quantization) -> Tensor:
    """`QuantizedLinear.code_format`."""
    kind, group = rounding.value_type, rounding.group
    columns = 0 if group is ScaleGroup.ROW else int(group.value)
    facts = kind.bits, int(kind is ValueType.E4M3), columns, int(not rounding.symmetric)
    return torch.tensor(facts, dtype=torch.int32)


def _stored(numbers: Array, kind: ValueType) -> Tensor:
    """Codes as the layer holds them."""
    return torch.from_numpy(kind.to_stored(numbers))


def _narrow(dtype: torch.dtype) -> torch.dtype:
    """The type of scales for a layer's: float16 for a wider one."""
    return dtype if dtype in (torch.float16, torch.bfloat16) else torch.float16
