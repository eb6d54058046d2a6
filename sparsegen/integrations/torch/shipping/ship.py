"""`ship`: a converted model as a folder that plain PyTorch runs, without sparsegen."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from sparsegen import arguments
from sparsegen.errors import (
    CompileError,
    ConfigError,
    OperandError,
    OutputExistsError,
    one_line,
)
from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import StandIn, standing_in
from sparsegen.integrations.torch.calls.example_inputs import arguments_of
from sparsegen.integrations.torch.shipping.layer_calls import Compute, LayerCall, noted_calls, stood_in
from sparsegen.integrations.torch.shipping.libraries import require_stable_interface, write_library
from sparsegen.integrations.torch.shipping.operator_calls import OperatorCalls, ShippedCall, stand_in_of
from sparsegen.integrations.torch.shipping.program_source import program_source
from sparsegen.integrations.torch.shipping.shipped_products import ShippedProduct, shipped_products
from sparsegen.kernels.base import Device
from sparsegen.plan.shipping.launches import ShippedLaunch, architecture_of
from sparsegen.plan.shipping.library import namespace_of
from sparsegen.plan.shipping.program import ProgramKind
from sparsegen.system.publish import publish_folder, reported
from sparsegen.tuning.prediction.targets import find_target

PROGRAM, SOURCE, FACTS = "model.pt2", "program.py", "shipped.json"
FORMAT = 1
LOADER = "load.py"
# AOTInductor compiles one wrapper for a program whose work is on a GPU: to find which vectors the CPU has would take
# six processes, to compile headers beforehand pays from the second program on.
QUICKER = {"cpp.vec_isa_ok": False, "aot_inductor.precompile_headers": False}
STANDARD_LIBRARY = "libstdc++.so.6"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A folder that was written.

    Attributes:
        namespace: of the library's operator in ``torch.ops``.
        launches: launches of kernels in the library.
        dense: products that stay dense, as they take less time so.
        architectures: what the library has kernels for, such as ``sm_90a``; ``cpu`` for the emulator's.
    """

    folder: Path
    kind: ProgramKind
    namespace: str
    launches: tuple[ShippedLaunch, ...]
    dense: int
    architectures: tuple[str, ...]

    @property
    def how_to_load(self) -> str:
        """The line of Python that loads it."""
        return f'model = runpy.run_path("{self.folder / LOADER}")["load"]()'

    def to_dict(self) -> dict[str, object]:
        """JSON values; those of the file ``shipped.json`` beside the program."""
        return {
            "format": FORMAT,
            "program": self.kind.value,
            "torch": torch.__version__,
            "namespace": self.namespace,
            "architectures": list(self.architectures),
            "dense_products": self.dense,
            "launches": [
                {
                    "family": launch.family,
                    "config": dict(launch.config),
                    "problem": launch.problem.named(),
                    "packed_bytes": launch.packed.nbytes,
                }
                for launch in self.launches
            ],
        }

    def __str__(self) -> str:
        kernels = ", ".join(self.architectures)
        return (
            f"{self.folder}: {len(self.launches)} launches for {kernels}, {self.dense} dense products, {self.kind} by "
            f"PyTorch {torch.__version__}"
        )


def ship(
    model: nn.Module,
    example_inputs: object,
    output: str | Path,
    *,
    archs: Sequence[str] = (),
    program: ProgramKind | str = ProgramKind.COMPILED,
) -> Shipped:
    """Write a converted model for inference into a folder that plain PyTorch runs, without sparsegen and its database.

    The folder has the exported program with the packed weights (``model.pt2``), the library of its kernels
    (``kernels.so``), which registers operators by PyTorch's stable interface, what loads both (``load.py``), and what
    is in them (``shipped.json``). It takes inputs of the shapes of the example inputs alone. The kernels are those that
    this process runs, so that products have equal bits; products that are dense here stay so. PyTorch 2.10 or later
    loads it:

        model = runpy.run_path("folder/load.py")["load"]()

    Args:
        model: with sparse layers (`convert`), masked convolutions or attention by blocks, in evaluation, on the device
            that it is shipped for. It stays as it is.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones.
        output: a folder that is not there yet.
        archs: further GPUs that the library gets kernels for, such as ``"sm_80"`` or ``"h100"``; see
            `sparsegen.tuning.prediction.targets`.
        program: ``"compiled"``: by AOTInductor, whose own kernels are for this device alone. ``"exported"``: by
            `torch.export`, with its operations as Python's source; ``torch.export.load("folder/model.pt2").module()``
            runs it too, and imports PyTorch's compilers.

    Raises:
        OperandError: a model that runs no kernel or is in training, one that `torch.export` cannot trace or that calls
            further operators of sparsegen, or example inputs that are none. What the model raises is passed on.
        DeviceUnavailableError: no kernel runs for the model's dtype and device, or there is no C++ compiler.
        ConfigError: an architecture that a layer's kernel cannot run on.
        CompileError: the library, or AOTInductor, did not compile; the message says what else can be shipped.
        PackageMissingError: a PyTorch older than 2.10.
        OutputError: the folder is there already, or cannot be written.
    """
    arguments.instance(model, nn.Module, "model", OperandError)
    folder = Path(arguments.location(output, "output"))
    kind = arguments.word(ProgramKind, program, "program", OperandError)
    wanted = arguments.texts(archs, "archs", ConfigError)
    args, kwargs = arguments_of(example_inputs)
    _require_ready(model, folder)
    place = _place(model, args, kwargs)
    devices = _devices(place, wanted)
    found = _Launched.of(model, args, kwargs, devices, place)
    launches = [one.launch for one in found.different if one.launch is not None]
    if not launches:
        raise OperandError(
            "the model runs no kernel with these inputs: it has no sparse layer, or dense products take less time; "
            "convert it first (sparsegen.integrations.torch.convert), or ship it by torch.export alone"
        )
    architectures = tuple(architecture_of(device) for device in devices)
    dense = len(found.different) - len(launches)
    shipped = Shipped(folder, kind, namespace_of(launches), tuple(launches), dense, architectures)
    with reported(folder), publish_folder(folder) as work:
        write_library(launches, work)
        exported = found.exported(shipped.namespace, model, args, kwargs)
        _write_program(exported, kind, work)
        write_loader(work, kind)
        (work / FACTS).write_text(json.dumps(shipped.to_dict(), indent=1) + "\n", encoding="utf-8")
    return shipped


@dataclass(frozen=True, slots=True)
class _Launched:
    """All that a program of a model launches: for each call of a layer or of an operator."""

    layers: Mapping[LayerCall, ShippedProduct]
    operators: Mapping[Hashable, ShippedCall]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        devices: Sequence[Device],
        place: torch.device,
    ) -> _Launched:
        """Run the model, which prepares its kernels, and trace it: operators with data of the call show there alone."""
        layers = shipped_products(noted_calls(model, args, kwargs), devices)
        calls = OperatorCalls()
        _exported(model, args, kwargs, {call: one.shape_alone for call, one in layers.items()}, calls.note)
        return cls(layers, calls.shipped(devices, place))

    @property
    def different(self) -> list[ShippedProduct | ShippedCall]:
        """Each once, in the order of launches."""
        return list(dict.fromkeys([*self.layers.values(), *self.operators.values()]))

    def exported(
        self, namespace: str, model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> ExportedProgram:
        """The program, which calls a library that is loaded."""
        launches = [one for one in self.different if one.launch is not None]
        numbers = {one: number for number, one in enumerate(launches)}
        layers = {call: one.computed_by(namespace, numbers.get(one, 0)) for call, one in self.layers.items()}
        operators = {key: one.computed_by(namespace, numbers[one]) for key, one in self.operators.items()}
        return _exported(model, args, kwargs, layers, stand_in_of(operators))


def _require_ready(model: nn.Module, folder: Path) -> None:
    """Raises what `ship` says of the model, PyTorch and the folder."""
    require_stable_interface()
    if model.training:
        raise OperandError("the model is in training, and is shipped for inference: call model.eval() first")
    with reported(folder):
        if folder.exists():
            raise OutputExistsError("it is there already; choose another name, or remove it", path=folder)


def _place(model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> torch.device:
    """The model's device: that of its first parameter or buffer, or without any of the first tensor that it gets."""
    state: Iterable[object] = [*model.parameters(), *model.buffers(), *tree_leaves((args, dict(kwargs)))]
    return next((one.device for one in state if isinstance(one, torch.Tensor)), torch.device("cpu"))


def _devices(place: torch.device, archs: Sequence[str]) -> list[Device]:
    """One device of each architecture, the model's own first."""
    own = kernel_device_of(place)
    found = {} if own is None else {architecture_of(own): own}
    for arch in archs:
        device = find_target(arch).device
        found.setdefault(architecture_of(device), device)
    return list(found.values())


def _exported(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    layers: Mapping[LayerCall, Compute],
    stand_in: StandIn,
) -> ExportedProgram:
    """The program of a model whose sparse layers and operators are stood in for.

    Raises:
        OperandError: it cannot be traced.
    """
    with ExitStack() as stack:
        stack.enter_context(stood_in(layers))
        stack.enter_context(standing_in(stand_in))
        stack.enter_context(torch.no_grad())
        try:
            return torch.export.export(model, args, dict(kwargs), strict=False)
        except OperandError:
            raise
        except Exception as error:  # PyTorch's errors of tracing have no root of their own
            reason = one_line(str(error).strip().partition("\n")[0])
            raise OperandError(
                f"torch.export cannot trace the model: {type(error).__name__}: {reason}"
            ) from error


def _write_program(exported: ExportedProgram, kind: ProgramKind, folder: Path) -> None:
    """Raises CompileError where AOTInductor cannot compile it."""
    path = folder / PROGRAM
    if kind is ProgramKind.EXPORTED:
        torch.export.save(exported, path)
        if (source := program_source(exported, path)) is not None:
            (folder / SOURCE).write_text(source, encoding="utf-8")
        return
    try:
        configs = _inductor_configs()
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=configs)
    except Exception as error:  # likewise: of compilers, assemblers, missing headers
        text = str(error).strip()
        raise CompileError(
            f"AOTInductor of PyTorch {torch.__version__} cannot compile the model here: {type(error).__name__}: "
            f'{one_line(text.partition(chr(10))[0])}; program="exported" ships what torch.export wrote, without it',
            log=text,
        ) from error


def _inductor_configs() -> dict[str, object]:
    """Settings for AOTInductor, as far as this PyTorch has them.

    A wrapper with a C++ library of its own inside, as some compilers link it, crashes when it is loaded: its locales
    are then in part those of the process's library.
    """
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler

    command = [get_cpp_compiler(), f"-print-file-name={STANDARD_LIBRARY}"]
    place = subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip()
    libraries = [f":{STANDARD_LIBRARY}"] if Path(place).is_absolute() else []
    asked: dict[str, object] = QUICKER | {"aot_inductor.custom_op_libs": libraries}
    known = config.get_config_copy()
    return {key: value for key, value in asked.items() if key in known}


def write_loader(folder: Path, kind: ProgramKind) -> None:
    """Write the file into a folder of a library and a program."""
    source = Path(__file__).with_name(f"load_{kind.value}.py").read_text(encoding="utf-8")
    (folder / LOADER).write_text(source, encoding="utf-8")
