"""Launchers of operator objects: a matrix packed and uploaded for its chosen variant."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sparsegen.backends.executor import Address, Executor, Toolchain
from sparsegen.dispatch.chosen import Choice
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Operator
from sparsegen.operators.base.overflow import require_values
from sparsegen.plan.arrays import Call, Target, caller, current_stream_of, encoded, host_values
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.new_values import new_values
from sparsegen.system.device_memory import Buffer
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.records import Variant


class VariantLauncher:
    """A `Launcher` of one variant.

    Attributes:
        choice: the variant, and why it was chosen.
        device: the device that it runs on.
        prepared: the variant compiled and bound to the packed matrix.
        pattern: see `__init__`.
        verified: when its result was last held against the reference, in words; empty if not known.
    """

    verified = ""

    def __init__(
        self,
        choice: Choice,
        matrix: CsrMatrix | Packed[Buffer],
        *,
        executor: Executor,
        toolchain: Toolchain,
        kept: Mapping[str, object],
        pattern: str | None,
        value_order: Array | None = None,
    ) -> None:
        """Compile (or find), pack, upload.

        Args:
            matrix: packed already, or to be packed.
            kept: operands for every call that does not bring its own, by name.
            pattern: fingerprint of the matrix whose values `update_values` gets; None if it is not known.
            value_order: for each of the matrix's nonzeros its number among the values of `update_values`; by default
                these are in the matrix's own order.

        Raises:
            CompileError, LaunchError: the variant cannot be built or loaded.
            OperandError: a kept operand of the wrong shape.
        """
        self.choice = choice
        self.device: Device = executor.device
        self._problem = choice.problem
        self.pattern = pattern
        self.prepared = bind_variant(
            choice.config, choice.problem, matrix, executor, toolchain, value_order=value_order
        )
        self._specs = {spec.name: spec for spec in self.prepared.operands}
        with executor.entered():
            fixed = {name: executor.upload(encoded(value, self._specs[name])) for name, value in kept.items()}
            if fixed:
                executor.synchronize()  # calls may come on other streams than the uploads
        self._target = Target(self.prepared, self.device, fixed)
        self._callers: dict[type, Call] = {}
        self._changing = threading.Lock()
        own = self._problem.own_values(self.prepared.packed.nnz)
        self._values_shape = (self.prepared.packed.nnz,) if own is None else own.shape

    def run(self, operands: tuple[object, ...], out: object, stream: object) -> Any:
        """See `Launcher.run`."""
        kind = type(operands[0])
        call = self._callers.get(kind)
        if call is None:
            call = self._callers[kind] = caller(kind, self._target)
        return call(operands, out, stream)

    @property
    def kept(self) -> Collection[str]:
        """Names of the operands that calls need not bring."""
        return self._target.fixed.keys()

    def kept_address(self, name: str) -> int:
        """Returns the address of an operand that calls may leave out.

        Raises:
            OperandError: it is not kept.
        """
        buffer = self._target.fixed.get(name)
        if buffer is None:
            raise OperandError(f"{name}: expected an array of shape {self._specs[name].shape}, got none")
        return buffer.address

    def kept_operand(self, name: str) -> Array | None:
        """The operand that is kept, in storage form; None if it is not."""
        buffer, executor = self._target.fixed.get(name), self.prepared.executor
        if buffer is None:
            return None
        spec = self._specs[name]
        found = np.empty(spec.shape, dtype=spec.dtype.storage)
        with executor.entered():
            executor.download(buffer, found)
        return found

    @property
    def variant(self) -> Variant:
        """Family, config and source digest, as the database knows them."""
        return Variant(self.choice.config, self.prepared.digest)

    @property
    def source(self) -> str:
        """The CUDA source that runs."""
        return self.prepared.source

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrix on the device."""
        return self.prepared.packed.nbytes

    def explain(self) -> str:
        """Describes what runs, and why."""
        compiled, packed = self.prepared.compiled.kernel, self.prepared.packed
        facts = [f"{packed.nbytes} bytes packed"]
        if compiled.registers is not None:
            facts.append(f"{compiled.registers} registers, {compiled.spill_bytes or 0} bytes spilled")
        place = f"  on {self.device.name}: {', '.join(facts)}"
        verified = (f"  {self.verified}",) if self.verified else ()
        return "\n".join((self.choice.explain(), place, *verified, f"  source: {compiled.source}"))

    def update_values(self, values: object) -> None:
        """See `Operator.update_values`."""
        values = new_values(values, self._values_shape, self.pattern)
        with self._changing:
            if not self._gather_on_device(values):
                found = host_values(values)
                require_values(found, self._problem.dtype, "values")
                self.prepared.overwrite_values(self._problem.dtype.to_storage(found))

    def _gather_on_device(self, values: object) -> bool:
        """Gather a PyTorch tensor into the packed values where both lie; False when it is not there."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(values, torch.Tensor) or self.device.backend != "cuda":
            return False
        if values.get_device() != self.device.index:
            return False
        if self.prepared.packed.values is None:
            return False  # the host's route refuses it
        kind = getattr(torch, str(self._problem.dtype))
        gathered = values
        if values.dtype is not kind or not values.is_contiguous():
            gathered = values.detach().to(kind).contiguous()
        if gathered.numel():
            stream = current_stream_of(torch)(self.device.index)
            address = Address(gathered.data_ptr(), gathered.numel() * gathered.element_size())
            self.prepared.gather_values(address, stream)
        return True


def variant_launcher(operator: Operator) -> VariantLauncher:
    """Returns the launcher of the operator's variant.

    Raises:
        OperandError: the dense product runs instead.
    """
    if not isinstance(operator.launcher, VariantLauncher):
        raise OperandError('the dense product runs instead of a variant: prepare it with dense="never"')
    return operator.launcher
