"""`ship`: a converted model as a folder that plain PyTorch runs, without sparsegen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsegen import arguments
from sparsegen.errors import (
    CompileError,
    ConfigError,
    OperandError,
    OutputExistsError,
    one_line,
)
from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.example_inputs import arguments_of
from sparsegen.integrations.torch.shipping.layer_calls import noted_calls, sparse_layers, stood_in
from sparsegen.integrations.torch.shipping.libraries import LIBRARY, require_stable_interface, write_library
from sparsegen.integrations.torch.shipping.shipped_products import ShippedProduct, shipped_products
from sparsegen.kernels.base import Device, cuda_architecture
from sparsegen.plan.shipping.launches import ShippedLaunch
from sparsegen.plan.shipping.library import namespace_of
from sparsegen.plan.shipping.program import ProgramKind
from sparsegen.system.publish import publish_folder, reported
from sparsegen.tuning.prediction.targets import find_target

PROGRAM, FACTS = "model.pt2", "shipped.json"
FORMAT = 1


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
        """The lines of Python that load it."""
        library, program = self.folder / LIBRARY, self.folder / PROGRAM
        loads = (
            f'model = torch._inductor.aoti_load_package("{program}")'
            if self.kind is ProgramKind.COMPILED
            else f'model = torch.export.load("{program}").module()'
        )
        return f'torch.ops.load_library("{library}")\n{loads}'

    def to_dict(self) -> dict[str, Any]:
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
                    "problem": {"operator": launch.problem.operator, **launch.problem.to_dict()},
                    "weight_bytes": launch.weight.nbytes,
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
    example_inputs: Any,
    output: str | Path,
    *,
    archs: Sequence[str] = (),
    program: ProgramKind | str = ProgramKind.COMPILED,
) -> Shipped:
    """Write a converted model for inference into a folder that plain PyTorch runs, without sparsegen and its database.

    The folder has the exported program with the packed weights (``model.pt2``), the library of its kernels
    (``kernels.so``), which registers one operator by PyTorch's stable interface, and what is in them
    (``shipped.json``). It takes inputs of the shapes of the example inputs alone. The kernels are those that this
    process runs, so that products have equal bits; products that are dense here stay so. PyTorch 2.10 or later
    loads it:

        torch.ops.load_library("folder/kernels.so")
        model = torch._inductor.aoti_load_package("folder/model.pt2")

    Args:
        model: with sparse layers (`convert`), in evaluation, on the device that it is shipped for. It stays as it is.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones.
        output: a folder that is not there yet.
        archs: further GPUs that the library gets kernels for, such as ``"sm_80"`` or ``"h100"``; see
            `sparsegen.tuning.prediction.targets`.
        program: ``"compiled"``: by AOTInductor, whose own kernels are for this device alone. ``"exported"``: by
            `torch.export`; ``torch.export.load("folder/model.pt2").module()`` runs it.

    Raises:
        OperandError: a model without sparse layers or in training, one that `torch.export` cannot trace or that calls
            other operators of sparsegen, or example inputs that are none. What the model raises is passed on.
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
    devices = _devices(model, wanted)
    products = shipped_products(noted_calls(model, args, kwargs), devices)
    different = list(dict.fromkeys(products.values()))
    launches = [p for p in different if p.launch is not None]
    if not launches:
        raise OperandError(
            "no sparse layer of the model runs a kernel with these inputs: dense products take less time, and "
            "torch.export alone ships those"
        )
    shipped = _shipped(folder, kind, launches, len(different) - len(launches), devices)
    numbers = {product: number for number, product in enumerate(launches)}
    with reported(folder), publish_folder(folder) as work:
        write_library(shipped.launches, work)
        computed = {
            call: product.computed_by(shipped.namespace, numbers.get(product, 0))
            for call, product in products.items()
        }
        with stood_in(computed):
            exported = _exported(model, args, kwargs)
        _write_program(exported, kind, work / PROGRAM)
        (work / FACTS).write_text(json.dumps(shipped.to_dict(), indent=1) + "\n", encoding="utf-8")
    return shipped


def _require_ready(model: nn.Module, folder: Path) -> None:
    """Raises what `ship` says of the model, PyTorch and the folder."""
    require_stable_interface()
    if not sparse_layers(model):
        raise OperandError(
            "the model has no sparse layer: call sparsegen.integrations.torch.convert(model, ...) first"
        )
    if model.training:
        raise OperandError("the model is in training, and is shipped for inference: call model.eval() first")
    with reported(folder):
        if folder.exists():
            raise OutputExistsError("it is there already; choose another name, or remove it", path=folder)


def _devices(model: nn.Module, archs: Sequence[str]) -> list[Device]:
    """One device of each architecture, the model's own first."""
    layer = sparse_layers(model)[0]
    own = kernel_device_of(layer.values.device)
    found = {} if own is None else {_architecture(own): own}
    for arch in archs:
        device = find_target(arch).device
        found.setdefault(_architecture(device), device)
    return list(found.values())


def _architecture(device: Device) -> str:
    return "cpu" if device.backend == "emulator" else cuda_architecture(device.compute_capability)


def _shipped(
    folder: Path, kind: ProgramKind, products: Sequence[ShippedProduct], dense: int, devices: Sequence[Device]
) -> Shipped:
    launches = tuple(p.launch for p in products if p.launch is not None)
    return Shipped(
        folder, kind, namespace_of(launches), launches, dense, tuple(_architecture(d) for d in devices)
    )


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The program of a model whose sparse layers are stood in for.

    Raises:
        OperandError: it cannot be traced, or calls an operator of sparsegen's that is not shipped.
    """
    try:
        with torch.no_grad():
            found = torch.export.export(model, args, dict(kwargs), strict=False)
    except OperandError:
        raise
    except Exception as error:  # PyTorch's errors of tracing have no root of their own
        reason = one_line(str(error).strip().partition("\n")[0])
        raise OperandError(
            f"torch.export cannot trace the model: {type(error).__name__}: {reason}"
        ) from error
    left = {str(node.target) for node in found.graph.nodes if str(node.target).startswith("sparsegen.")}
    if left:
        raise OperandError(
            f"the model calls {', '.join(sorted(left))}, which cannot be shipped yet: sparse linear layers and 1 × 1 "
            "convolutions can"
        )
    return found


def _write_program(exported: Any, kind: ProgramKind, path: Path) -> None:
    """Raises CompileError where AOTInductor cannot compile it."""
    if kind is ProgramKind.EXPORTED:
        torch.export.save(exported, path)
        return
    try:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    except Exception as error:  # likewise: of compilers, assemblers, missing headers
        text = str(error).strip()
        raise CompileError(
            f"AOTInductor of PyTorch {torch.__version__} cannot compile the model here: {type(error).__name__}: "
            f'{one_line(text.partition(chr(10))[0])}; program="exported" ships what torch.export wrote, without it',
            log=text,
        ) from error
