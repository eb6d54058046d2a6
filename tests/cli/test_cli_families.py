"""``sparsegen families`` and ``sparsegen devices``."""

from __future__ import annotations

import pytest
from command_line import Command, computed_traits

from sparsegen import kernels
from sparsegen.operators import OPERATORS, SpmmProblem


@pytest.mark.parametrize("name", kernels.families())
def test_every_tunable_and_constraint_is_told(name: str, run: Command) -> None:
    family = kernels.family(name)
    sizes = ("-n", "32") if family.problem_type is SpmmProblem else ()
    options = (*sizes, *computed_traits(family))
    [told] = run.json("families", name, *options)["families"]
    assert (told["name"], told["summary"], told["operator"]) == (
        name,
        family.summary,
        family.problem_type.operator,
    )
    assert [t["name"] for t in told["tunables"]] == [t.name for t in family.config_type.tunables()]
    for tunable in told["tunables"]:
        assert tunable["default"] in tunable["choices"]
        assert set(tunable["searched"]) <= set(tunable["choices"])
    assert told["points"] >= told["points_searched"] > 1
    assert told["constraints"]
    assert all(c["holds"] for c in told["constraints"])
    text = " ".join(run("families", name, *options).output.split())
    for tunable in told["tunables"]:
        assert tunable["name"] in text
    for constraint in told["constraints"]:
        assert " ".join(constraint["sentence"].split()) in text


def test_constraints_are_those_of_the_given_problem(run: Command) -> None:
    [told] = run.json("families", "csr_spmm", "-n", "3")["families"]
    assert told["example"]["dense_vector_width"] == 1
    assert any("divides n (3)" in c["sentence"] for c in told["constraints"])


def test_families_whose_results_vary_say_so(run: Command) -> None:
    for name, deterministic in (("tma_attention_backward", False), ("csr_spmm", True)):
        [told] = run.json("families", name)["families"]
        assert told["deterministic"] is deterministic
        assert ("differ in their last bits" in run("families", name).output) is not deterministic


def test_all_families_are_listed(run: Command) -> None:
    assert [f["name"] for f in run.json("families")["families"]] == list(kernels.families())


def test_a_list_has_a_line_or_two_for_each(run: Command) -> None:
    told = run("families", "--operator", "sddmm").output
    assert told.startswith("sddmm ") and "\n  csr_sddmm " in told and "What must hold" not in told
    assert "csr_spmm" not in told and "`sparsegen families NAME`" in told
    assert len(run("families").output.splitlines()) < 4 * len(kernels.families())


def test_families_are_those_that_take_the_options(run: Command) -> None:
    def operators(*options: str) -> set[str]:
        return {f["operator"] for f in run.json("families", *options)["families"]}

    assert operators() == set(OPERATORS)
    assert operators("--operator", "sddmm") == {"sddmm"} == operators("--epilogue", "scale")
    assert operators("--layout", "column") == {"spmm", "quantized_spmm"}
    [told] = run.json("families", "csr_sddmm", "-k", "3")["families"]
    assert told["problem"]["k"] == 3 and told["example"]["vector_width"] == 1
    assert (
        "computes sddmm, not spmm" in run("families", "csr_sddmm", "--operator", "spmm", exit_code=3).stderr
    )
    assert "takes no layout" in run("families", "csr_sddmm", "--layout", "row", exit_code=3).stderr


def test_an_unknown_family(run: Command) -> None:
    assert "there are bitmap_spmm, block_spmm, cluster_network" in run("families", "csr", exit_code=3).stderr


def test_an_unknown_device(run: Command) -> None:
    assert (
        "use cuda, cuda:N, emulator or emulator:N" in run("families", "--device", "tpu", exit_code=4).stderr
    )


def test_devices(run: Command) -> None:
    data = run.json("devices")
    assert data["devices"][-1]["device"] == "emulator"
    assert (data["no_gpu_because"] is None) or len(data["devices"]) == 1
    assert "emulator (CPU)" in run("devices").output
