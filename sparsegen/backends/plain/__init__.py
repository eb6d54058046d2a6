"""Plain kernels, which nothing is specialised in: references, packing, timing. They share no code with variants."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

from sparsegen import backends
from sparsegen.backends.executor import CompiledKernel, Executor, LoadedKernel
from sparsegen.kernels.launch import Launch

THREADS = 256


def compiled_kernels(executor: Executor, *names: tuple[str, str]) -> list[LoadedKernel]:
    """Kernels of this folder, by file and entry; compiled side by side where the cache has them not."""
    toolchain = backends.toolchain(executor.device)

    def compiled(name: tuple[str, str]) -> CompiledKernel:
        file, entry = name
        source = (files(__name__) / file).read_text(encoding="utf-8")
        return toolchain.compile("plain", entry, source)

    with ThreadPoolExecutor(len(names)) as pool:
        return [executor.load(kernel) for kernel in pool.map(compiled, names)]


def elementwise(count: int) -> Launch:
    """A thread for each element."""
    return Launch((-(-count // THREADS), 1, 1), (THREADS, 1, 1))
