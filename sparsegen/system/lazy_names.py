"""Names of a package that are imported when first used; a stub beside its ``__init__.py`` says where they are."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Mapping
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)


def homes(package: str) -> dict[str, str]:
    """The module of each name, as the package's stub says: ``from module import name as name``."""
    stub = (pkgutil.get_data(package, "__init__.pyi") or b"").decode()
    return {name: module for module, name in _IMPORT.findall(stub)}


def found(package: str, home: Mapping[str, str], name: str) -> Any:
    """Returns a name's value for a package's ``__getattr__``, and makes it an attribute of the package.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in home:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home[name]), name)
    setattr(sys.modules[package], name, value)
    return value
