"""``sparsegen source``; PTX, SASS and resources through stand-ins for NVIDIA's tools."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Command, computed_traits

from sparsegen import kernels
from sparsegen.cli import source

SIZES = ("--m", "64", "--k", "32", "-n", "16")

NVCC = """#!/bin/sh
case "$*" in
  *--version*) echo "release 13.0" ;;
  *-ptx*) test -s kernel.cu && echo "// PTX $*" > kernel.ptx ;;
  *-cubin*) echo cubin > kernel.cubin
    echo "ptxas info : 0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads" >&2
    echo "ptxas info : Used 40 registers, 96 bytes smem" >&2 ;;
esac
"""


@pytest.fixture
def tools(run: Command, tmp_path: Path) -> Path:
    """A folder with an nvcc that every command of this test finds; other tools can be put beside it."""
    folder = tmp_path / "cuda" / "bin"
    folder.mkdir(parents=True)
    put(folder / "nvcc", NVCC)
    run.environment.update(
        SPARSEGEN_NVCC=str(folder / "nvcc"), CUDA_HOME=str(folder.parent), PATH="/usr/bin:/bin"
    )
    return folder


def put(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


@pytest.mark.parametrize("family", kernels.families())
def test_every_family_renders_without_a_gpu(family: str, run: Command) -> None:
    chosen = kernels.family(family)
    problem = chosen.problem_type
    sizes = {
        **{"m": ("--m", "64"), "k": ("--k", "32"), "n": ("-n", "16")},
        **{"height": ("--image-height", "20"), "width": ("--image-width", "30")},
        **{"channels": ("--channels", "16"), "filters": ("--filters", "32"), "points": ("--points", "64")},
        **{"images": ("--images", "2"), "queries": ("--queries", "16"), "keys": ("--keys", "128")},
        **{"kv_heads": ("--kv-heads", "2"), "group": ("--group", "1"), "head_dim": ("--head-dim", "64")},
    }
    given = [word for name in (*problem.matrix_sizes, *problem.dense_sizes) for word in sizes[name]]
    arguments = (
        "source",
        "--operator",
        problem.operator,
        *given,
        *computed_traits(chosen),
        "--family",
        family,
    )
    source = run(*arguments).output
    assert source.startswith(f"// {family}: ")
    assert "__global__" in source
    assert run(*arguments).output == source
    without_family = run.json(*arguments[:-2])
    assert without_family["problem"]["operator"] == problem.operator
    assert kernels.family(without_family["family"]).problem_type is problem


def test_config_changes_the_heuristic(run: Command) -> None:
    arguments = (
        "source",
        *SIZES,
        "--family",
        "csr_spmm",
        "--config",
        "tile_k=32",
        "--config",
        "row_order=sorted",
    )
    data = run.json(*arguments)
    assert (data["config"]["tile_k"], data["config"]["row_order"]) == (32, "sorted")
    assert data["chosen_by"] == "the command line"
    assert data["source"] == run(*arguments).output
    assert "kTileK = 32;" in data["source"]


def test_with_a_matrix(run: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.eye(24, 48))
    data = run.json("source", "--matrix", "w.npy", "-n", "8", "--dtype", "float16", "--epilogue", "bias")
    assert (data["problem"]["m"], data["problem"]["k"], data["problem"]["n"]) == (24, 48, 8)
    assert (data["problem"]["dtype"], data["problem"]["epilogue"]) == ("float16", "bias")


def test_without_a_family_dispatch_chooses(run: Command) -> None:
    data = run.json("source", *SIZES)
    assert data["chosen_by"].startswith("dispatch (default): ")
    assert data["family"] in kernels.families()


def test_output_overwrites_on_request_alone(run: Command, tmp_path: Path) -> None:
    given = ("source", *SIZES, "--family", "csr_spmm", "-o", "kernel.cu")
    (tmp_path / "kernel.cu").write_text("mine")
    assert "--force" in run(*given, exit_code=3).stderr
    assert (tmp_path / "kernel.cu").read_text(encoding="utf-8") == "mine"
    run(*given, "--force")
    assert "csr_spmm" in (tmp_path / "kernel.cu").read_text(encoding="utf-8")


def test_output_goes_to_a_file(run: Command, tmp_path: Path) -> None:
    source = run("source", *SIZES, "--family", "csr_spmm").output
    said = run("source", *SIZES, "--family", "csr_spmm", "-o", "kernel.cu").output
    assert said == f"kernel.cu: {len(source.splitlines())} lines\n"
    assert (tmp_path / "kernel.cu").read_text() == source
    assert "cannot be written" in run("source", *SIZES, "-o", "kernel.cu/kernel.cu", exit_code=1).stderr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("tile_n=3", "'3' is none of 8, 16"),
        ("tile=64", "no tunable 'tile'"),
        ("row_order=sorted; asm", "is none of"),
        ("dense_vector_width=8", "at most 16 bytes"),
    ],
)
def test_an_invalid_config_is_refused_in_words(config: str, message: str, run: Command) -> None:
    result = run("source", *SIZES, "--family", "csr_spmm", "--config", config, exit_code=3)
    assert message in result.stderr
    assert result.stdout == ""


def test_a_family_of_another_operator_is_refused(run: Command) -> None:
    said = run("source", *SIZES, "--operator", "sddmm", "--family", "csr_spmm", exit_code=3).stderr
    assert "computes spmm, not sddmm; for that there are csr_sddmm" in said


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--m", "4"),
        ("--matrix", "w.npy", "--m", "4", "--k", "4"),
        (*SIZES, "--config", "tile_n=64"),
        (*SIZES, "--family", "csr_spmm", "--config", "tile_n"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], run: Command) -> None:
    run("source", *arguments, exit_code=2)


@pytest.mark.parametrize("forms", list(itertools.combinations(source.FORMS, 2)), ids=" ".join)
def test_one_form_is_printed(forms: tuple[str, str], run: Command) -> None:
    flags = [f"--{form}" for form in forms]
    error = run.json("source", *SIZES, *flags, exit_code=2)["error"]
    assert error["message"] == f"give only one of {' and '.join(flags)}"


def test_ptx(run: Command, tools: Path) -> None:
    text = run("source", *SIZES, "--ptx").output
    assert text.startswith("// PTX") and "-arch=sm_90a" in text


def test_resources(run: Command, tools: Path) -> None:
    data = run.json("source", *SIZES, "--resources")
    assert (data["registers"], data["spill_bytes"], data["static_shared_bytes"]) == (40, 12, 96)
    assert "registers: 40" in run("source", *SIZES, "--resources").output


@pytest.mark.parametrize("tool", ["cuobjdump", "nvdisasm"])
def test_sass(tool: str, run: Command, tools: Path) -> None:
    put(tools / tool, f'#!/bin/sh\necho "{tool} $*"\n')
    text = run("source", *SIZES, "--sass").output
    assert text.startswith(f"{tool} ") and text.endswith("kernel.cubin\n")


def test_missing_tools_are_named_with_their_fix(run: Command, tools: Path) -> None:
    assert "apt install cuda-cuobjdump" in run("source", *SIZES, "--sass", exit_code=4).stderr
    (tools / "nvcc").unlink()
    assert "install the CUDA toolkit" in run("source", *SIZES, "--ptx", exit_code=4).stderr


def test_a_failing_tool_shows_its_log(run: Command, tools: Path) -> None:
    broken = "#!/bin/sh\ncase $1 in --version) exit ;; esac\necho 'kernel.cu(3): error: no' >&2\nexit 2\n"
    put(tools / "nvcc", broken)
    assert "kernel.cu(3): error: no" in run("source", *SIZES, "--ptx", exit_code=1).stderr


def test_a_program_for_a_gpu_that_is_not_here(run: Command, tmp_path: Path) -> None:
    output = tmp_path / "mine.cu"
    given = ("source", *SIZES, "--family", "csr_spmm", "--standalone")
    said = run(*given, "--for", "h100", "--output", str(output)).stdout
    assert "mine.cu -o mine" in said and "int main(" in output.read_text()
    assert not output.with_suffix(".bin").exists()
    assert run(*given, "--for", "h100").stdout.startswith("// csr_spmm as a program of its own")
    found = json.loads(run(*given, "--for", "h100", "--json").stdout)
    assert found["packed"] is None and found["command"].startswith("nvcc ")
    assert "name one that is not here with --for" in run(*given, exit_code=2).stderr
    assert "ends in .cu" in run(*given, "--for", "h100", "-o", str(tmp_path / "x"), exit_code=2).stderr
    assert "no --device" in run(*given, "--for", "h100", "--device", "emulator", exit_code=2).stderr


def test_what_a_program_reads_is_written_beside_it(run: Command, tmp_path: Path) -> None:
    output = tmp_path / "mine.cu"
    given = ("source", *SIZES, "--family", "panel_spmm", "--standalone", "--for", "h100")
    assert "say where with --output" in run(*given, exit_code=2).stderr
    run(*given, "--output", str(output))
    assert output.with_suffix(".bin").read_bytes().startswith(b"sparsegen packed 1\n")
    assert '"mine.bin"' in output.read_text()
    output.unlink()
    assert "mine.bin" in run(*given, "--output", str(output), exit_code=3).stderr
    assert not output.exists()
