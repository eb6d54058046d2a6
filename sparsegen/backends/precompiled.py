"""Kernels that were compiled beforehand, elsewhere: what a job's bundle brings to a machine without a compiler."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.system.json_object import Json

LIST = "kernels.json"


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a compiled source.

    Attributes:
        sha256: the binary's digest.
        registers, spill_bytes, static_shared_bytes: see `CompiledKernel`.
    """

    sha256: str
    registers: int | None = None
    spill_bytes: int | None = None
    static_shared_bytes: int | None = None

    @classmethod
    def of(cls, kernel: CompiledKernel) -> Facts:
        return cls(kernel.digest, kernel.registers, kernel.spill_bytes, kernel.static_shared_bytes)


def source_digest(source: str) -> str:
    """Returns the key of a compiled source, its SHA-256. The binary holds every kernel of the source."""
    return hashlib.sha256(source.encode()).hexdigest()


def binary_name(digest: str) -> str:
    """The file of a compiled source."""
    return f"{digest}.bin"


def listing(fingerprint: str, kernels: Mapping[str, Facts]) -> str:
    """The text of `LIST`, from the toolchain's fingerprint and the facts of each source by its digest."""
    return (
        json.dumps({"fingerprint": fingerprint, "kernels": {d: asdict(f) for d, f in kernels.items()}}) + "\n"
    )


class PrecompiledToolchain:
    """A `sparsegen.backends.executor.Toolchain` that compiles nothing.

    Args:
        folder: folder of the binaries, and of `LIST`.

    Raises:
        DeviceUnavailableError: it is not such a folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
            self._fingerprint = str(listed["fingerprint"])
            self._kernels = {digest: Facts(**facts) for digest, facts in listed["kernels"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DeviceUnavailableError(
                f"{folder} holds no kernels that were compiled beforehand ({error}): correct or unset SPARSEGEN_KERNELS"
            ) from None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the toolchain that compiled them."""
        return self._fingerprint

    def warm_up(self, jobs: int) -> None:
        """See `Toolchain.warm_up`: nothing."""

    def make_ready(self) -> None:
        """See `Toolchain.make_ready`: nothing."""

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        """The binary of this very source.

        Raises:
            CompileError: it is none of those that were compiled.
        """
        digest = source_digest(source)
        facts = self._kernels.get(digest)
        if facts is None:
            raise CompileError(f"{entry} of {family} is not among the kernels that were compiled beforehand")
        found: Json = asdict(facts)
        binary = self._folder / binary_name(digest)
        return CompiledKernel(entry=entry, source=binary, binary=binary, digest=found.pop("sha256"), **found)
