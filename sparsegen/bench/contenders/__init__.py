"""One file for each contender, each exporting ``CONTENDER``; whatever is in this folder takes part."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from sparsegen.bench.contender.contender import Contender

ORDER = (
    "sparsegen",
    "sparsegen-untuned",
    "sparsegen-default",
    "sparsegen-graph",
    "cublas",
    "cublas-tf32",
)  # first in turn; the others follow by name


@cache
def contenders() -> dict[str, Contender]:
    """Every contender by name."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    found = [importlib.import_module(f"{__name__}.{name}").CONTENDER for name in names]
    found.sort(key=lambda c: (ORDER.index(c.name) if c.name in ORDER else len(ORDER), c.name))
    return {contender.name: contender for contender in found}
