"""Files of baselines, each exporting ``BASELINES``; whatever is in this folder takes part."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from sparsegen.bench.baseline.baseline import Baseline

# First in turn; the others follow by name.
ORDER = "sparsegen", "sparsegen-untuned", "sparsegen-default", "sparsegen-graph", "cublas", "cublas-tf32"


@cache
def baselines() -> dict[str, Baseline]:
    """Every baseline by name."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    found = [b for name in names for b in importlib.import_module(f"{__name__}.{name}").BASELINES]
    found.sort(key=lambda c: (ORDER.index(c.name) if c.name in ORDER else len(ORDER), c.name))
    return {baseline.name: baseline for baseline in found}
