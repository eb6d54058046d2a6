"""Example inputs of a model: given as objects, or read from a file."""

from __future__ import annotations

import importlib
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegen.errors import MatrixError, OperandError
from sparsegen.matrix.readers.files import check_readable
from sparsegen.system.numpy_load import load_numpy

OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:function
SUFFIXES = (".npz", ".npy", ".pt")


def arguments_of(example_inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments for a call.

    Args:
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones.

    Raises:
        OperandError: none of these.
    """
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, tuple) and example_inputs:
        return example_inputs, {}
    if isinstance(example_inputs, dict) and all(isinstance(name, str) for name in example_inputs):
        return (), example_inputs
    raise OperandError(
        f"example_inputs: expected a tensor, a tuple of arguments or a dict of named ones, got "
        f"{type(example_inputs).__name__}"
    )


def is_object(text: str) -> bool:
    """True if a text names an object of a Python module and no file."""
    return OBJECT.fullmatch(text) is not None


def called(text: str) -> Any:
    """Returns the result of a function named as ``module:function``.

    Raises:
        OperandError: there is no such module, or no such function in it. What the function raises is passed on.
    """
    module, _, name = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise OperandError(
            f"{text}: no module {module!r} can be imported ({error}); is its folder on PYTHONPATH?"
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise OperandError(f"{text}: the module {module!r} has no function {name!r}")
    return found()


def read_example_inputs(text: str, model: nn.Module, device: torch.device) -> Any:
    """Example inputs by name: what `arguments_of` takes, on a device.

    Args:
        text: ``module:function``, called without arguments; or a file: ``.npy`` with one array; ``.npz`` with named
            arguments, or positional ones if all are called ``arr_0``, ``arr_1`` and so on; ``.pt`` with tensors in
            sequences and dicts, as ``torch.save`` writes them.
        model: floating-point arrays of NumPy take the dtype of its first floating-point parameter.

    Raises:
        OperandError: a suffix that is not read, or content that is no example input.
        MatrixError: a file that is missing or malformed.
    """
    if is_object(text):
        return _moved(called(text), device)
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise OperandError(
            f"{text}: example inputs are read from {', '.join(SUFFIXES)} files, or made by module:function"
        )
    check_readable(path)
    try:
        if path.suffix.lower() == ".pt":
            found = torch.load(path, weights_only=True, map_location="cpu")
            return _moved(tuple(found) if isinstance(found, list) else found, device)
        loaded = load_numpy(path)
        if isinstance(loaded, np.ndarray):
            return _sent(loaded, model, device)
        with loaded as file:
            arrays = {name: _sent(file[name], model, device) for name in file.files}
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        RuntimeError,
        zipfile.BadZipFile,
        pickle.UnpicklingError,
    ) as error:
        reason = str(error).strip().partition("\n")[0]
        raise MatrixError(f"no example inputs can be read: {reason}", source=path) from error
    if arrays and all(name == f"arr_{i}" for i, name in enumerate(arrays)):
        return tuple(arrays.values())
    return arrays


def _sent(array: np.ndarray[Any, Any], model: nn.Module, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.array(array)).to(device)
    if tensor.is_floating_point():
        kinds = (p.dtype for p in model.parameters() if p.is_floating_point())
        return tensor.to(next(kinds, tensor.dtype))
    return tensor


def _moved(nested: object, device: torch.device) -> Any:
    """The same with its tensors on a device."""
    if isinstance(nested, Tensor):
        return nested.to(device)
    if isinstance(nested, dict):
        return {name: _moved(value, device) for name, value in nested.items()}
    if isinstance(nested, (list, tuple)):
        return type(nested)(_moved(value, device) for value in nested)
    return nested
