"""Problems that stand in no list: names and lines of their table, and the parts of studies that pick among problems."""

from __future__ import annotations

from click.testing import CliRunner

from benchmarks import drawn_variants
from benchmarks.off_the_list import cases
from benchmarks.off_the_list_tables import line_of
from sparsegen.bench.drawn import drawn_cases
from sparsegen.kernels import family
from sparsegen.operators import MaskedConv2dProblem
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning_db.records import Workload


def test_every_problem_has_a_name_and_every_convolution_a_line() -> None:
    found = cases()
    assert len({(case.name, case.dtypes) for case in found}) == len(found)
    lines = [line_of(c.problem) for c in found if isinstance(c.problem, MaskedConv2dProblem)]
    assert len(set(lines)) == len(lines)
    assert "`masked_conv2d` 1 × 48 × 300 × 260 → 80, 5 × 5 filters, 50% live" in lines
    assert "`masked_conv2d` 2 × 32 × 320 × 320, in planes, float32, 50% live" in lines


def test_images_in_planes_run_as_they_lie() -> None:
    planes = [c.problem for c in cases() if getattr(c.problem, "layout", None) and "nchw" in str(c.problem)]
    assert len(planes) == 8 and all(family("plane_conv").computes(problem) for problem in planes)


def test_only_families_that_are_named_have_configs_beside_the_heuristic_one() -> None:
    device = find_target("nvidia-h200").device
    case = next(c for c in drawn_cases("masked_conv2d", 9101, 6) if str(c.problem.layout) == "nchw")  # type: ignore[attr-defined]
    workload = Workload.of(case.problem, case.pattern.matrix())
    found = drawn_variants.candidates(workload, device, 8, 9101, ["plane_conv"])
    names = [config.family_name for config in found]
    assert names.count("plane_conv") > 2 and names.count("mma_conv") == 1
    assert len(set(found)) == len(found)
    every = drawn_variants.candidates(workload, device, 8, 9101)
    assert [config.family_name for config in every].count("mma_conv") > 1


def test_a_field_is_a_name_and_a_value() -> None:
    done = CliRunner().invoke(drawn_variants.main, ["--having", "nchw", "--rows", "1"])
    assert done.exit_code == 2 and "FIELD=VALUE" in done.output
