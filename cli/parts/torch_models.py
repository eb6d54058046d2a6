"""Models of PyTorch and inputs to call them with, as commands name them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegen.errors import OperandError, PackageMissingError
from sparsegen.kernels.base import Device
from sparsegen.settings import use_device
from sparsegen.system.extras import install_command

if TYPE_CHECKING:
    from torch import nn

EXPORTED = ".pt2"


def model_and_inputs(model: Path, example_inputs: str, device: Device) -> tuple[nn.Module, Any]:
    """A model in evaluation, and its inputs, on a device; in the emulator on the CPU.

    Args:
        model: a ``.pt2`` file, or ``module:function`` that makes it.
        example_inputs: see `read_example_inputs`.

    Raises:
        PackageMissingError: PyTorch is not installed.
        OperandError, MatrixError: a model or inputs that cannot be had.
    """
    try:
        import torch

        from sparsegen.integrations.torch.calls.example_inputs import read_example_inputs
    except ModuleNotFoundError as error:
        raise PackageMissingError(
            f"--example-inputs needs PyTorch, which runs the model: {install_command('torch')}"
        ) from error
    if device.backend == "emulator":
        use_device("emulator")  # layers ask for the device of their tensors
    where = torch.device("cpu") if device.backend == "emulator" else torch.device("cuda", device.index)
    found = _model(model).to(where).eval()
    return found, read_example_inputs(example_inputs, found, where)


def _model(model: Path) -> nn.Module:
    from torch import nn

    from sparsegen.integrations.torch.calls.example_inputs import called, is_object
    from sparsegen.integrations.torch.models.exported_program import exported_model

    text = str(model)
    if is_object(text):
        made = called(text)
        if not isinstance(made, nn.Module):
            raise OperandError(f"{text} gave {type(made).__name__} and no torch.nn.Module")
        return made
    if model.suffix.lower() != EXPORTED:
        raise OperandError(
            f"{text}: to be called, a model is a .pt2 file of torch.export.save, or module:function that makes it"
        )
    return exported_model(model)
