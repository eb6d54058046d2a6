"""Starts a job's bundle, in which this file is ``__main__.py``: until its files are checked, Python's library alone.

It runs the bundle's own sparsegen in a Python that finds it before any other, and tells it by settings where the
kernels go, to call the driver without PyCUDA, and that no database is to be opened.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

PYTHON = (3, 11)
NEEDED = ("numpy", "scipy")
# Errors of reading a damaged archive, among them RuntimeError if a flag says that a file is encrypted, or compressed
# in a way that is not known.
DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def main() -> None:
    """Check the bundle that is being run, and run it."""
    bundle = Path(sys.argv[0]).absolute()
    if sys.version_info < PYTHON:
        sys.exit(
            f"this bundle needs Python {PYTHON[0]}.{PYTHON[1]} or newer; this is {sys.version.split()[0]}"
        )
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"this bundle needs {' and '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}"
        )
    try:
        name, has_kernels = checked(bundle)
    except DAMAGE as error:
        sys.exit(f"{bundle} is damaged, and is not run: {error}; copy it again")
    inherited = dict(os.environ)
    cache = cache_folder(inherited)
    folder = cache / "jobs" / f"{name}-{os.getpid()}"  # the process's number stays the same
    own = {
        "PYTHONPATH": os.pathsep.join([str(bundle), *filter(None, [inherited.get("PYTHONPATH")])]),
        "SPARSEGEN_CACHE": str(cache),
        "SPARSEGEN_DB": str(folder / "unused.db"),
        "SPARSEGEN_DRIVER": "direct",
        "SPARSEGEN_KERNELS": str(folder / "kernels") if has_kernels else "",
    }
    command = [sys.executable, "-P", "-m", "sparsegen.cli.bundle", str(bundle), *sys.argv[1:]]
    os.execve(sys.executable, command, {**inherited, **own})


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Returns sparsegen's cache folder, so that locks of devices are shared with an installed one."""
    named = environment.get("SPARSEGEN_CACHE")
    if named:
        return Path(named).absolute()
    try:
        return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "sparsegen"
    except RuntimeError:
        sys.exit("this user has no home folder: set SPARSEGEN_CACHE to a folder that can be written")


def checked(bundle: Path) -> tuple[str, bool]:
    """The name of the job, and whether there are compiled kernels; once every file has its digest.

    Raises:
        One of `DAMAGE`: the bundle is damaged.
    """
    with zipfile.ZipFile(bundle) as archive:
        manifest = archive.read("manifest.json")
        files = json.loads(manifest)["files"]
        if {*archive.namelist()} != {*files, "manifest.json"}:
            raise ValueError("its files are not those of its manifest")
        for name, listed in files.items():
            digest = hashlib.sha256()
            with archive.open(name) as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
            if digest.hexdigest() != listed["sha256"]:
                raise ValueError(f"{name} is not what it was")
    return hashlib.sha256(manifest).hexdigest()[:24], "kernels/kernels.json" in files


if __name__ == "__main__":
    main()
