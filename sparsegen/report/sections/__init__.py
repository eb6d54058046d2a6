"""The report's sections, one file each with what it computes, says and draws; `ALL` is their order."""

from __future__ import annotations

from collections.abc import Callable

from sparsegen.report.content import Section
from sparsegen.report.material import Material
from sparsegen.report.sections import (
    best,
    fixed,
    networks,
    regret,
    roofline,
    scaling,
    speedup,
    study,
    summary,
    variants,
)

ALL: tuple[Callable[[Material], Section], ...] = (
    summary.section,
    speedup.section,
    roofline.section,
    scaling.section,
    networks.section,
    best.section,
    study.section,
    regret.section,
    fixed.section,
    variants.section,
)
