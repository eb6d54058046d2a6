"""sparsegen: an autotuning code-generation compiler for sparse GPU kernels."""

import importlib
import pkgutil
import re
from importlib.machinery import PathFinder
from typing import Any

__version__ = "0.1.0"

# Of the source tree, not of an installation: what pyproject.toml maps into this package lies beside it.
if PathFinder.find_spec(f"{__name__}.tuning_db", __path__) is None:
    from sparsegen import source_tree

    source_tree.make_importable()

# Name -> module, as the stub beside this file says. Modules are imported when a name is first used, so that
# `import sparsegen` and `--help` are instant.
_STUB = (pkgutil.get_data(__name__, "__init__.pyi") or b"").decode()
_HOME = {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", _STUB, re.MULTILINE)}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sparsegen' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
