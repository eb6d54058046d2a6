"""Inference with a sparse network: all of its layers prepared as one operator, for batches of inputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sparsegen import api, arguments, backends
from sparsegen.errors import ConfigError, OperandError
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.networks.exact.exact import bound, exact_categories, inferred, require_monotone
from sparsegen.networks.exact.exact_run import ExactRun
from sparsegen.networks.exact.float64_run import Float64Run
from sparsegen.networks.model.inputs import Inputs, as_inputs, require_finite, require_shape
from sparsegen.networks.model.network import Network
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.packed.packing import Wanted, packed_network
from sparsegen.networks.run.dealing import DeviceGroup
from sparsegen.networks.run.placement import Devices, Placement
from sparsegen.operators import DType, Problem, TensorSpec, member
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.sparse_network import Activation, Readout, SparseNetworkProblem, largest
from sparsegen.plan.arrays import current_stream_of, require_aligned
from sparsegen.plan.binding import BoundVariant
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.system.device_memory import Address, Buffer
from sparsegen.system.numpy_types import Array
from sparsegen.system.quantities import microseconds

GroupKey: TypeAlias = tuple[int, Readout, int, tuple[Any, ...]]

if TYPE_CHECKING:
    from sparsegen.tuning.tuner import TuneResult


class SparseNetwork:
    """Y ← f(Y · Wᵀ + b), layer after layer, on one device.

    Variants are chosen for a batch size when it is met for the first time, by what `tune` recorded; the matrix is
    packed and uploaded then; copies and pickles prepare anew. Where no bias is above zero ReLU lets inputs die, and
    families drop these on the way.

    Attributes:
        network: layers, biases, clip.
        dtype: type of weights and neurons on the device; biases keep the precision of float32, sums are float32.
        activation: ``dying_relu`` where ReLU was asked for and no bias is above zero.
        undecided: number of inputs that the last exact `categories` had to compute in float64.
    """

    def __init__(
        self,
        layers: Any,
        *,
        bias: Any = 0.0,
        activation: str = "relu",
        clip: float = np.inf,
        dtype: DType | str = DType.FLOAT16,
        device: Device | str | None = None,
        db: str | Path | None = None,
        family: str | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Check the layers; nothing is compiled yet.

        Args:
            layers: matrices that `as_csr` takes, each a layer's neurons × the neurons before; or a `Network`, which has
                bias and clip of its own.
            bias: one number, or for each layer a number or one for each neuron.
            activation: ``"relu"`` or ``"none"``.
            clip: upper limit of activations, above 0; by default the dtype's largest finite number.
            device, db, family, config: see `sparsegen.prepare`.

        Raises:
            MatrixError: a layer is malformed, widths do not follow each other, the last layer has no neurons,
                weights or biases are not finite.
            ConfigError: an unknown word, or a clip that is not above 0.
        """
        self.network = layers if isinstance(layers, Network) else Network.of(layers, bias, clip)
        self.dtype = member(DType, dtype, "dtype")
        asked = member(Activation, activation, "activation")
        if asked is Activation.DYING_RELU:
            raise ConfigError("activation = dying_relu is found by the biases; ask for relu")
        dies = asked is Activation.RELU and self.network.largest_bias <= 0
        self.activation = Activation.DYING_RELU if dies else asked
        self.undecided = 0
        self._device, self._db, self._family, self._config = device, db, family, config
        self._forget()

    def __repr__(self) -> str:
        layers = len(self.network.layers)
        weights = sum(layer.nnz for layer in self.network.layers)
        return f"<SparseNetwork: {layers} layers, {weights} weights, {self.activation}, {self.dtype}>"

    def _forget(self) -> None:
        """Forgets everything prepared."""
        self._matrix: CsrMatrix | None = None
        self._operators: dict[tuple[int, Readout], Operator] = {}
        self._packed: dict[tuple[Readout, int], PackedNetwork] = {}
        self._groups: dict[GroupKey, DeviceGroup] = {}
        self._exact: ExactRun | None = None
        self._float64: dict[tuple[str, int], Float64Run] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns the constructor's arguments; what was prepared is left out, and copies prepare anew."""
        prepared = ("_matrix", "_operators", "_packed", "_groups", "_exact", "_float64")
        return {name: value for name, value in vars(self).items() if name not in prepared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def problem(self, batch: int, readout: Readout | str = Readout.NEURONS) -> SparseNetworkProblem:
        """Returns the problem for ``batch`` inputs."""
        m, k = self.matrix().shape
        return SparseNetworkProblem(
            m,
            k,
            arguments.whole(batch, "batch", least=1),
            self.dtype,
            self.activation,
            member(Readout, readout, "readout"),
        )

    def matrix(self) -> CsrMatrix:
        """All layers as one matrix; see `SparseNetworkProblem`."""
        if self._matrix is None:
            self._matrix = self.network.stacked(self.dtype)
        return self._matrix

    def tune(self, batch: int, readout: Readout | str = Readout.NEURONS, **options: Any) -> TuneResult:
        """Find the fastest variant for a batch size and record it; see `sparsegen.tune` for options and errors.

        Variants that were chosen before give way to it at the next call.
        """
        problem = self.problem(batch, readout)
        found = api.tune(self.matrix(), problem, device=self._device, db=self._db, **options)
        self._operators.pop((problem.n, problem.readout), None)
        return found

    def operator(self, batch: int, readout: Readout | str = Readout.NEURONS) -> Operator:
        """Returns the operator object for ``batch`` inputs; kept for the next call.

        Raises:
            What `sparsegen.prepare` raises.
        """
        problem = self.problem(batch, readout)
        key = (problem.n, problem.readout)
        if key not in self._operators:
            self._operators[key] = self._prepared(self.matrix(), problem, self.network.clip)
        return self._operators[key]

    def _prepared(self, matrix: CsrMatrix, problem: SparseNetworkProblem, clip: float) -> Operator:
        return api.prepare(
            matrix,
            problem,
            clip=min(clip, largest(self.dtype)),
            device=self._device,
            db=self._db,
            family=self._family,
            config=self._config,
        )

    def __call__(
        self, y: object, *, memory: object = None, devices: Devices | None = None
    ) -> tuple[Any, Any]:
        """Returns the last layer's neurons, and the numbers of the inputs that live.

        Args:
            y: inputs × neurons before the first layer, a NumPy array or PyTorch tensor of numbers; with ``memory`` or
                ``devices`` also `BitInputs`.
            memory: bytes of each device's memory that may be used, or text such as ``"8 GiB"``. Layers that do not
                fit at once come from the host while others are computed, inputs go in batches.
            devices: ``"all"``, or names or numbers with commas between: inputs are divided among these.

        Returns:
            Inputs × outputs of the network's dtype, and the numbers of the inputs with an output that is not zero; both
                of ``y``'s kind.

        Raises:
            OperandError: another shape, or no array.
            DeviceMemoryError: ``memory`` does not hold a layer twice and a tile of inputs.
        """
        if memory is not None or devices is not None:
            found = self._placed(y, Readout.NEURONS, Placement.of(memory, devices, self._device))
            return _like(y, found), _like(y, np.flatnonzero(found.any(axis=1)))
        given = self._given(y)
        found = self.operator(given.shape[0])(given)
        if _is_tensor(found):
            return found, found.any(dim=1).nonzero()[:, 0]
        return found, np.flatnonzero(found.any(axis=1))

    def totals(self, y: object, *, memory: object = None, devices: Devices | None = None) -> Any:
        """The sum of each input's outputs, float32; see `__call__` for arguments and errors."""
        if memory is not None or devices is not None:
            return _like(y, self._placed(y, Readout.TOTALS, Placement.of(memory, devices, self._device)))
        given = self._given(y)
        return self.operator(given.shape[0], Readout.TOTALS)(given)

    def categories(
        self, y: object, *, exact: bool = True, memory: object = None, devices: Devices | None = None
    ) -> Array:
        """The inputs that live through all layers: int64, sorted.

        What is computed in the dtype rounds, and an input near the border between dying and living may fall on the
        other side. With ``exact`` the result is that of float64: networks that bound this one from above and below
        decide nearly all inputs for certain, and the others are computed in float64
        (`sparsegen.networks.exact.exact`), each as far as it takes to be certain. Inputs are what the dtype holds of
        them.

        Args:
            memory, devices: see `__call__`; within a budget the host computes what bounds leave undecided.

        Raises:
            OperandError, DeviceMemoryError: see `__call__`.
            ConfigError: exact categories of a network with negative weights, without ReLU or without a clip that the
                dtype holds: nothing bounds its neurons.
        """
        is_exact = arguments.flag(exact, "exact")
        if memory is not None or devices is not None:
            return self._placed_categories(y, Placement.of(memory, devices, self._device), exact=is_exact)
        given = self._given(y)
        if not is_exact:
            return np.flatnonzero(_on_host(self.operator(given.shape[0], Readout.TOTALS)(given)))
        run = self.exact_run()
        address, stream = self._on_device(given)
        found = run.categories(address, given.shape[0], stream)
        self.undecided = found.undecided
        return found.live

    def exact_run(self) -> ExactRun:
        """Returns the runner of exact categories on the device; kept for the next call.

        Raises:
            ConfigError: see `categories`.
        """
        if self._exact is None:
            require_monotone(self.network, self.activation, self.dtype)
            self._exact = ExactRun(self._float64_run(self._found_device()), self._bound_variant)
        return self._exact

    def _bound_variant(self, network: Network, batch: int, readout: Readout) -> BoundVariant:
        """A variant for a network that bounds some layers of this one."""
        matrix = network.stacked(self.dtype)
        problem = SparseNetworkProblem(*matrix.shape, batch, self.dtype, self.activation, readout)
        return variant_launcher(self._prepared(matrix, problem, network.clip)).prepared

    def _on_device(self, given: Any) -> tuple[Buffer, int]:
        """Inputs in device memory, and the stream on which they are ready there."""
        executor = shared_executor(self._found_device())
        if _is_tensor(given) and given.device.type == "cuda":
            torch = sys.modules["torch"]
            index = executor.device.index
            if given.get_device() != index:
                raise OperandError(f"y: expected a tensor on cuda:{index}, got one on {given.device}")
            spec, address = TensorSpec("y", tuple(given.shape), self.dtype), int(given.data_ptr())
            require_aligned(spec, address, "clone()")
            return Address(address, spec.nbytes), current_stream_of(torch)(index)
        with executor.entered():
            return executor.upload(self.dtype.to_storage(_on_host(given))), 0

    def _placed_categories(self, y: object, placement: Placement, *, exact: bool) -> Array:
        if not exact:
            return np.flatnonzero(self._placed(y, Readout.TOTALS, placement))
        require_monotone(self.network, self.activation, self.dtype)
        inputs = as_inputs(_from_host(y), self.network.inputs, self.dtype)

        def totals(some: Inputs, side: int) -> Array:
            return self._placed(some, Readout.TOTALS, placement, side)

        found = exact_categories(inputs, totals, lambda rows: self._live_in_float64(rows.values(), placement))
        self.undecided = found.undecided
        return found.live

    def _placed(self, y: object, readout: Readout, placement: Placement, side: int = 0) -> Array:
        inputs = as_inputs(_from_host(y), self.network.inputs, self.dtype)
        found = self.group(inputs.count, readout, placement, side=side).infer(inputs).results
        return found if readout is Readout.TOTALS else self.dtype.from_storage(found)

    def group(
        self, count: int, readout: Readout | str, placement: Placement, *, side: int = 0
    ) -> DeviceGroup:
        """Returns the network packed for ``count`` inputs on some devices, with memory on each; kept for the next call.

        Within a budget only one is kept on the devices. What was packed on the host serves again.

        Args:
            side: 0 for the network itself, 1 or -1 for one whose neurons bound its from above or below.

        Raises:
            DeviceMemoryError: the budget does not hold a layer twice and a tile of inputs.
            What `sparsegen.prepare` raises.
        """
        key = (count, member(Readout, readout, "readout"), side, placement.key)
        if key not in self._groups:
            if placement.budget is not None:
                self._groups.clear()
            alike = key[1], side
            self._packed[alike] = self._pack(count, key[1], placement, side)
            self._groups[key] = placement.group(self._packed[alike])
        return self._groups[key]

    def pack(
        self,
        count: int,
        readout: Readout | str = Readout.TOTALS,
        *,
        memory: object = None,
        devices: Devices | None = None,
    ) -> PackedNetwork:
        """Packs the network on the host for ``count`` inputs; `save_packed` writes it to a file.

        Raises:
            What `__call__` raises.
        """
        placement = Placement.of(memory, devices, self._device)
        return self.group(arguments.whole(count, "count", least=1), readout, placement).packed

    def release(self) -> None:
        """Free the device memory that calls with ``memory`` or ``devices`` hold; what was packed stays on the host."""
        self._groups.clear()
        self._float64.clear()

    def _pack(self, count: int, readout: Readout, placement: Placement, side: int) -> PackedNetwork:
        wanted = Wanted(
            self.network if side == 0 else bound(self.network, self.dtype, side),
            self.dtype,
            self.activation,
            readout,
            count,
            placement.devices,
            placement.usable_bytes(),
            self._db,
            self._family,
            self._config,
        )
        return placement.pinned(packed_network(wanted, self._packed.get((readout, side))))

    def _live_in_float64(self, y: Array, placement: Placement) -> Array:
        """Decides inputs on the host in float64: on the first device, or on the host where a budget holds."""
        if placement.budget is not None:
            return np.asarray(inferred(self.network, self.activation, y).any(axis=1))
        return self._float64_run(placement.devices[0]).live(y)

    def _float64_run(self, device: Device) -> Float64Run:
        """The runner in float64 on a device; kept for the next call."""
        key = (device.backend, device.index)
        if key not in self._float64:
            executor = shared_executor(device)
            with executor.entered():
                self._float64[key] = Float64Run(self.network, self.dtype, self.activation, executor)
        return self._float64[key]

    def inferred(self, y: object) -> Array:
        """The last layer's neurons in float64, on the host; slow. Weights are not rounded."""
        return inferred(self.network, self.activation, _on_host(self._given(y))[:, : self.network.inputs])

    def explain(
        self,
        batch: int,
        readout: Readout | str = Readout.NEURONS,
        *,
        memory: object = None,
        devices: Devices | None = None,
    ) -> str:
        """Describes what runs for ``batch`` inputs and why, and how the layers were taken; see `__call__`.

        Where one device holds all, also whether rows share columns, and why no other family runs.
        """
        head = (
            f"{len(self.network.layers)} layers of up to {self.network.neurons} neurons, {self.network.edges} weights, "
            f"{self.dtype}, {self.activation}"
        )
        if memory is not None or devices is not None:
            placement = Placement.of(memory, devices, self._device)
            packed = self.group(batch, readout, placement).packed
            names = ", ".join(backends.device_name(device) for device in placement.devices)
            return "\n".join((head, packed.explain(), f"  on {names}"))
        operator = self.operator(batch, readout)
        problem = operator.problem
        features = problem.features(self.matrix())
        shared = f"tiles of 16 rows that share columns are filled to {features.block_fill:.0%}"
        others = [
            f"  not {family.name}: {_why_not(family, problem, features, self._found_device())}"
            for family in families().values()
            if family.problem_type is SparseNetworkProblem
            and family.name != operator.choice.config.family_name
        ]
        return "\n".join((head, shared, operator.explain(), *others))

    def _found_device(self) -> Device:
        return self._device if isinstance(self._device, Device) else backends.find_device(self._device)

    def _given(self, y: Any) -> Any:
        """Inputs in the network's dtype, padded to the widest layer."""
        width, wanted = self.network.neurons, self.network.inputs
        require_shape(tuple(np.shape(y)), wanted)
        if _is_tensor(y):
            torch = sys.modules["torch"]
            held = y.to(getattr(torch, str(self.dtype)))
            padded = torch.nn.functional.pad(held, (0, width - wanted)) if width > wanted else held
            return padded.contiguous()
        given = np.asarray(y)
        if given.dtype.kind not in "fiub":
            raise OperandError(f"y: expected numbers, got {given.dtype}")
        kind = np.float16 if self.dtype is DType.FLOAT16 else np.float32
        with np.errstate(over="ignore"):
            held = np.pad(given.astype(kind, order="C"), ((0, 0), (0, width - wanted)))
        require_finite(held[:, :wanted], given, self.dtype)
        return held


def _why_not(family: AnyFamily, problem: Problem, features: Features, device: Device) -> str:
    """Explains why a family does not run a network, or how long it should take with its heuristic config."""
    config = family.heuristic(problem, features, device)
    broken = family.broken_constraints(problem, config, device) or family.broken_requirements(
        problem, features, config
    )
    if broken:
        return f"it must hold: {'; '.join(broken)}"
    if device.backend == "emulator":  # the emulator's time says nothing of the kernels
        return "by predictions for a GPU another one is faster"
    return f"its heuristic config should take {microseconds(family.predicted_us(problem, features, device))}"


def _from_host(y: Any) -> Any:
    """Inputs, or an array on the host of the same numbers."""
    return y.detach().cpu().numpy() if _is_tensor(y) else y


def _like(y: Any, found: Array) -> Any:
    """A result of the kind of the inputs, and where they lie."""
    return sys.modules["torch"].from_numpy(found).to(y.device) if _is_tensor(y) else found


def _on_host(array: Any) -> Array:
    return array.detach().cpu().float().numpy() if _is_tensor(array) else np.asarray(array)


def _is_tensor(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)
