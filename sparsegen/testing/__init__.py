"""The contract tests of kernel families, for families that others write (docs/testing.md).

`check_family` runs all of a family's cases; `cases` gives them to pytest one by one. `PlantedBugs` shows that they
catch what goes wrong in a kernel. sparsegen's own families are held to the same.
"""

from __future__ import annotations

from sparsegen.testing.family import Case, cases, check_family
from sparsegen.testing.kinds import Kind
from sparsegen.testing.matrices import matrices
from sparsegen.testing.planted import PlantedBugs

__all__ = ["Case", "Kind", "PlantedBugs", "cases", "check_family", "matrices"]
