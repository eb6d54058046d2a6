"""Commands that install the packages of an extra: the one place for messages.

It names the packages themselves, which package indexes have. It does not name sparsegen, which none has.
"""

from __future__ import annotations

import shlex
import tomllib
from importlib import metadata

from sparsegen import source_tree
from sparsegen.system.json_object import Json


def install_command(extra: str) -> str:
    """``pip install`` and the packages of an extra, quoted for a shell."""
    try:
        names = packages(extra)
    except metadata.PackageNotFoundError:  # in a job's bundle, which is no installation
        return f"install the packages that sparsegen's pyproject.toml lists as {extra!r}"
    return f"pip install {' '.join(map(shlex.quote, names))}"


def packages(extra: str) -> list[str]:
    """The requirements of an extra, as pyproject.toml has them; of a source tree that is not installed, from there.

    Args:
        extra: a name of ``[project.optional-dependencies]``; ``""`` stands for what sparsegen needs at any rate.

    Raises:
        KeyError: there is no such extra.
    """
    declared = _of_source_tree()
    if declared is not None:
        return list(declared["optional-dependencies"][extra] if extra else declared["dependencies"])
    found = []
    for requirement in metadata.requires(source_tree.PACKAGE) or []:
        package, _, marker = requirement.partition(";")
        if marker.strip().replace('"', "'") == (f"extra == '{extra}'" if extra else ""):
            found.append(package.strip())
    if not found:
        raise KeyError(extra)
    return found


def _of_source_tree() -> Json | None:
    """``[project]`` of the source tree; None for an installation."""
    project = source_tree.ROOT / "pyproject.toml"
    if not project.is_file():
        return None
    declared: Json = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
    return declared if declared.get("name") == source_tree.PACKAGE else None
