"""Plain kernels, which nothing is specialised in: references, packing, timing. They share no code with variants."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from sparsegen import backends
from sparsegen.backends.executor import CompiledKernel, Executor, LoadedKernel
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import empty_as_one
from sparsegen.system.device_memory import WARP, Buffer
from sparsegen.system.numpy_types import Array

THREADS = 256
_INCLUDED = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


_loaded: WeakKeyDictionary[Executor, dict[tuple[str, str], LoadedKernel]] = WeakKeyDictionary()


def compiled_kernels(executor: Executor, *names: tuple[str, str]) -> list[LoadedKernel]:
    """Kernels of this folder, by file and entry; compiled side by side where the cache has them not.

    An executor loads each once: while a CUDA graph captures, a thread may bind what another has loaded, but not load.
    """
    known = _loaded.setdefault(executor, {})
    missing = [name for name in names if name not in known]
    if missing:
        toolchain = backends.toolchain(executor.device)

        def compiled(name: tuple[str, str]) -> CompiledKernel:
            file, entry = name
            return toolchain.compile("plain", entry, plain_source(file))

        with ThreadPoolExecutor(len(missing)) as pool:
            for name, kernel in zip(missing, pool.map(compiled, missing), strict=True):
                known[name] = executor.load(kernel)
    return [known[name] for name in names]


def is_loaded(executor: Executor, *names: tuple[str, str]) -> bool:
    """True if `compiled_kernels` has nothing to load."""
    return set(names) <= _loaded.get(executor, {}).keys()


def plain_source(file: str) -> str:
    """A file of this folder, with those that it includes from here in their places."""
    text = (files(__name__) / file).read_text(encoding="utf-8")
    return _INCLUDED.sub(lambda found: plain_source(found[1]), text)


class PlainKernels:
    """The `PlainDevice` of an executor, in whose context the calling thread is.

    It keeps what the kernels work on until `finish`.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._kept: list[Buffer | int] = []

    def upload(self, array: Array) -> Buffer:
        return self._executor.upload(empty_as_one(array))

    def filled(self, nbytes: int, byte: int = 0) -> Buffer:
        buffer = self._executor.allocate(max(1, nbytes))
        self._executor.fill(buffer, byte)
        return buffer

    def download(self, buffer: Buffer, count: int, dtype: npt.DTypeLike) -> Array:
        found = np.empty(count, dtype=dtype)
        if count:
            self._executor.synchronize()
            self._executor.download(buffer, found)
        return found

    def run(self, entry: str, warps: int, *arguments: Buffer | int) -> None:
        file, _, name = entry.partition(":")
        (kernel,) = compiled_kernels(self._executor, (file, name))
        if warps:
            self._executor.launch(kernel, Launch.flat(warps * WARP, THREADS), arguments)
            self._kept += arguments

    def finish(self) -> None:
        """Wait for the kernels."""
        self._executor.synchronize()
        self._kept.clear()
