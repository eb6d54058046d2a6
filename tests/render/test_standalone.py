"""Programs of variants: what they pack, launch and check, over the emulator's kernels; and as nvcc compiles them."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import GOLDENS, Golden
from programs import built, host_part, ran

import sparsegen
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_blocks, random_rows, random_uniform
from sparsegen.operators import DType, Epilogue, Problem, SpmmProblem
from sparsegen.render import render
from sparsegen.render.standalone import Standalone, has_standalone, is_packed_in_cpp, standalone
from sparsegen.tuning.prediction.targets import find_target

H100: Device = find_target("nvidia-h100").device
PUBLISHED = [
    golden
    for golden in GOLDENS
    if has_standalone(golden.family)
    and (golden.problem.batch == 1 or golden.problem.operator == "masked_conv2d")
    and isinstance(golden.problem.multiplied, DType)
]

# One of each family, and what no first one has: other memory orders, epilogues, masks.
OTHERS = (
    "csr_spmm-bf16-column-bias",
    "csr_sddmm-sddmm-fp16-scale",
    "mma_dsd-dsd-bf16-column-residual",
    "mma_sdd-sdd-fp16-kept",
    "mma_conv-conv-any-input-fp16",
    "mma_conv-conv-few-fp32",
    "mma_conv-conv-input-bf16-residual",
    "mma_conv-conv-planes-fp16",
    "tma_attention-blocks-fp16-no-masks",
)
FIRST = list({golden.family.name: golden for golden in reversed(PUBLISHED)}.values())
TRIED = [*FIRST, *(golden for golden in PUBLISHED if str(golden) in OTHERS and golden not in FIRST)]
COMPILED = ("csr_spmm", "bitmap_spmm", "panel_sddmm", "row_softmax", "tma_dsd")  # as nvcc takes long
PACKING = [family for family in families().values() if has_standalone(family) and is_packed_in_cpp(family)]


def matrix_of(problem: Problem) -> CsrMatrix:
    if not problem.has_pattern:
        return problem.without_pattern
    return random_uniform(*problem.matrix_shape, 0.1, seed=1)


def program_of(golden: Golden) -> Standalone:
    problem = smaller(golden.problem)
    return standalone(golden.family, problem, golden.config, matrix_of(problem), H100)


def smaller(problem: Problem) -> Any:
    """The problem; of images a part, as the host's reference takes long for all."""
    return replace(problem, height=32, width=32) if problem.operator == "masked_conv2d" else problem


def test_every_family_of_these_operators_is_published() -> None:
    operators = ("spmm", "sddmm", "sparse_softmax", "sparse_softmax_backward", "dsd", "dsd_transposed", "sdd")
    operators += ("masked_conv2d", "sparse_attention", "block_attention")
    of_these = {name for name, family in families().items() if family.problem_type.operator in operators}
    assert of_these == {name for name, family in families().items() if has_standalone(family)}


@pytest.mark.long
@pytest.mark.parametrize("golden", TRIED, ids=str)
def test_programs_find_their_results_right(
    golden: Golden, tmp_path: Path, emulator_toolchain: EmulatorToolchain
) -> None:
    program = program_of(golden)
    source = render(golden.family, smaller(golden.problem), golden.config)
    kernel = emulator_toolchain.compile(golden.family.name, golden.family.entry, source)
    host = built(host_part(program.source, golden.family.entry), tmp_path)
    if program.packed is not None:
        (tmp_path / program.packed_name).write_bytes(program.packed)
    found = ran(host, "--runs", "1", kernel=kernel)
    assert found.returncode == 0, found.stdout + found.stderr
    assert " 0 wrong" in found.stdout and "median of 1 launches" in found.stdout


@pytest.mark.slow
def test_programs_find_wrong_results(tmp_path: Path, emulator_toolchain: EmulatorToolchain) -> None:
    """The kernel of another epilogue."""
    family, matrix = families()["csr_spmm"], random_uniform(64, 128, 0.1, seed=1)
    problem = SpmmProblem(64, 128, 64, DType.FLOAT16, epilogue=Epilogue.BIAS)
    other = replace(problem, epilogue=Epilogue.BIAS_RELU)
    program = standalone(family, problem, family.config(), matrix, H100)
    kernel = emulator_toolchain.compile(family.name, family.entry, render(family, other, family.config()))
    found = ran(built(host_part(program.source, family.entry), tmp_path), kernel=kernel)
    assert found.returncode == 1 and " 0 wrong" not in found.stdout and "worst: element" in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["mtx", "smtx"])
def test_programs_that_pack_read_matrices(
    ending: str, tmp_path: Path, emulator_toolchain: EmulatorToolchain
) -> None:
    family, matrix = families()["csr_spmm"], random_rows(64, 128, 0.1, 0.5, seed=1)
    problem = SpmmProblem(64, 128, 64)
    program = standalone(family, problem, family.config(), matrix, H100)
    kernel = emulator_toolchain.compile(family.name, family.entry, render(family, problem, family.config()))
    host = built(host_part(program.source, family.entry), tmp_path)
    file = tmp_path / f"matrix.{ending}"
    offsets, columns = matrix.row_offsets, matrix.column_indices
    if ending == "mtx":
        rows = np.repeat(np.arange(64), np.diff(offsets))
        entries = (f"{r + 1} {c + 1} {v}" for r, c, v in zip(rows, columns, matrix.values, strict=True))
        file.write_text(
            "\n".join(
                (
                    "%%MatrixMarket matrix coordinate real general",
                    "% a comment",
                    f"64 128 {matrix.nnz}",
                    *entries,
                )
            )
        )
    else:
        lines = (f"64, 128, {matrix.nnz}", " ".join(map(str, offsets)), " ".join(map(str, columns)))
        file.write_text("\n".join(lines))
    found = ran(host, str(file), "--runs", "0", kernel=kernel)
    assert found.returncode == 0 and " 0 wrong" in found.stdout, found.stdout + found.stderr
    file.write_text(file.read_text().replace("64", "65", 1))
    damaged = ran(host, str(file), kernel=kernel)
    assert damaged.returncode == 2 and ("65 x 128" in damaged.stderr or "damaged" in damaged.stderr)
    assert "cannot be opened" in ran(host, "nowhere.mtx", kernel=kernel).stderr


@pytest.mark.slow
def test_programs_refuse_what_was_written_beside_another(
    tmp_path: Path, emulator_toolchain: EmulatorToolchain
) -> None:
    family, problem = families()["group_spmm"], SpmmProblem(64, 128, 64, DType.FLOAT16)
    one, other = (
        standalone(family, problem, family.config(), random_uniform(64, 128, share, seed=1), H100)
        for share in (0.1, 0.2)
    )
    kernel = emulator_toolchain.compile(family.name, family.entry, render(family, problem, family.config()))
    host = built(host_part(one.source, family.entry), tmp_path)
    assert "no such file" in ran(host, kernel=kernel).stderr
    assert other.packed is not None and one.packed is not None
    for packed, words in ((other.packed, "another source"), (one.packed[:-1], "cut off")):
        (tmp_path / one.packed_name).write_bytes(packed)
        found = ran(host, kernel=kernel)
        assert found.returncode == 2 and words in found.stderr


# --- packing -----------------------------------------------------------------------------------------------

DUMP = """
template <class T>
void dump(const std::vector<T>& array) {
  const std::uint64_t bytes = array.size() * sizeof(T);
  std::fwrite(&bytes, sizeof(bytes), 1, stdout);
  std::fwrite(array.data(), 1, bytes, stdout);
}

template <class T>
void read(std::FILE* file, std::vector<T>& array) {
  std::uint64_t bytes = 0;
  if (std::fread(&bytes, sizeof(bytes), 1, file) != 1) std::exit(3);
  array.resize(bytes / sizeof(T));
  if (std::fread(array.data(), 1, bytes, file) != bytes) std::exit(3);
}

int main(int, char** words) {
  std::FILE* file = std::fopen(words[1], "rb");
  host::Csr matrix;
  read(file, matrix.offsets);
  read(file, matrix.columns);
  read(file, matrix.values);
  const host::Packed packed = host::pack(matrix);
  const dim3 grid = host::grid_of(packed);
  dump(std::vector<long long>{grid.x, grid.y, grid.z, NUMBERS});
  ARRAYS
}
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", PACKING, ids=lambda family: family.name)
def test_packing_in_cpp_is_that_of_the_family(family: AnyFamily, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rows, columns = rng.choice([(64, 128), (200, 136), (256, 512), (72, 1024)])
    problem = drawn_problem(family, rows, columns, rng)
    config = drawn_config(family, problem, rng)
    matrix = rng.choice(
        (
            random_uniform(rows, columns, 0.1, seed),
            random_rows(rows, columns, 0.2, 1.0, seed),
            random_blocks(rows, columns, 8, 0.3, seed),
        )
    )
    if family.problem_type.operator == "spmm" and seed == 0:
        matrix = CsrMatrix.without_nonzeros((rows, columns))
    packed = family.pack(problem, config, matrix)
    names = [name for name in family.packed_names if name in packed.arrays]
    numbers = [f"packed.{name}" for name in packed.sizes]
    numbers += [f"static_cast<long long>(packed.{name}_bytes)" for name in packed.scratch]
    main = DUMP.replace("NUMBERS", ", ".join(numbers)).replace(
        "ARRAYS", "".join(f"dump(packed.{name});" for name in names)
    )
    program = standalone(family, problem, config, matrix, H100)
    host = host_part(program.source, family.entry).replace("int main(", "int main_of_program(")
    executable = built(host + main, tmp_path, level="-O0")  # as it runs for less time than it compiles
    stored = problem.dtype.to_storage(matrix.values)
    arrays = (matrix.row_offsets.astype("<i4"), matrix.column_indices.astype("<i4"), stored)
    given = b"".join(np.uint64(a.nbytes).tobytes() + np.ascontiguousarray(a).tobytes() for a in arrays)
    (tmp_path / "matrix").write_bytes(given)
    run = subprocess.run([str(executable), str(tmp_path / "matrix")], capture_output=True, check=True)
    first, *others = parts(run.stdout)
    launch = family.launch(problem, config, packed.sizes, H100)
    assert tuple(np.frombuffer(first, "<i8")) == (
        *launch.grid,
        *packed.sizes.values(),
        *packed.scratch.values(),
    )
    assert [name for name, b in zip(names, others, strict=True) if b != packed.arrays[name].tobytes()] == []


def parts(dumped: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(dumped):
        size = int.from_bytes(dumped[at : at + 8], "little")
        found.append(dumped[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def drawn_problem(family: AnyFamily, rows: int, columns: int, rng: random.Random) -> Any:
    """One that the family computes."""
    kind = family.problem_type
    others = {"spmm": {"n": rng.choice((64, 128, 40))}, "sddmm": {"k": 64}}.get(kind.operator, {})
    sizes = dict(zip(kind.matrix_sizes, (rows, columns), strict=True))
    dtypes = [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32]
    rng.shuffle(dtypes)
    problems = (kind(**sizes, **others, dtype=dtype) for dtype in dtypes)
    problem = next(one for one in problems if family.computes(one))
    epilogue = problem.fields.get("epilogue")
    if kind.operator == "sddmm" and epilogue is not None:
        problem = replace(problem, epilogue=rng.choice(list(type(problem.epilogue))))
    return problem


def drawn_config(family: AnyFamily, problem: Problem, rng: random.Random) -> Any:
    """A valid one."""
    tunables = family.config_type.tunables()
    while True:
        config = family.config_type.parse({t.name: rng.choice(t.choices) for t in tunables})
        if family.is_valid(problem, config, H100):
            return config


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_numbers_of_16_bits_are_converted_as_by_numpy(dtype: DType, tmp_path: Path) -> None:
    family = families()["csr_spmm"]
    problem = SpmmProblem(8, 8, 8, dtype)
    matrix = random_uniform(8, 8, 0.5, seed=0)
    program = standalone(
        family, problem, family.heuristic(problem, problem.features(matrix), H100), matrix, H100
    )
    host = host_part(program.source, family.entry).replace("int main(", "int main_of_program(")
    main = """
int main(int, char**) {
  float x;
  while (std::fread(&x, sizeof(x), 1, stdin) == 1) {
    const host::Stored bits = host::stored(x);
    const float again = static_cast<float>(host::real(bits));
    std::fwrite(&bits, sizeof(bits), 1, stdout);
    std::fwrite(&again, sizeof(again), 1, stdout);
  }
}
"""
    rng = np.random.default_rng(0)
    exact = dtype.from_storage(np.arange(1 << 16, dtype=np.uint16).view(dtype.storage)).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    with np.errstate(over="ignore"):
        halves = (exact[:-1].astype(np.float64) + exact[1:]) / 2
        numbers = np.concatenate(
            [
                exact,
                np.array([-np.inf, np.inf], np.float32),
                halves.astype(np.float32),
                rng.integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32),
            ]
        )
    numbers = numbers[~np.isnan(numbers)]
    run = subprocess.run(
        [str(built(host + main, tmp_path))], input=numbers.tobytes(), capture_output=True, check=True
    )
    found = np.frombuffer(run.stdout, [("bits", "<u2"), ("real", "<f4")])
    wanted = dtype.to_storage(numbers)
    assert np.array_equal(found["bits"], wanted.view(np.uint16))
    assert np.array_equal(found["real"], dtype.from_storage(wanted).astype(np.float32))


# --- what is refused, and nvcc -----------------------------------------------------------------------------


def test_what_is_not_published_is_refused() -> None:
    family, matrix = families()["csr_spmm"], random_uniform(64, 64, 0.1, seed=0)
    problem = SpmmProblem(64, 64, 64)
    with pytest.raises(ConfigError, match="one batch element"):
        standalone(family, replace(problem, batch=2), family.config(), matrix, H100)
    network = next(golden for golden in GOLDENS if golden.family.name == "fused_network")
    with pytest.raises(ConfigError, match=r"no standalone source of fused_network: .*csr_spmm"):
        standalone(network.family, network.problem, network.config, matrix, H100)
    eight_bits = next(golden for golden in GOLDENS if not isinstance(golden.problem.multiplied, DType))
    with pytest.raises(ConfigError, match="8 bits"):
        standalone(
            eight_bits.family,
            eight_bits.problem,
            eight_bits.config,
            eight_bits.problem.without_pattern,
            H100,
        )
    empty = CsrMatrix.without_nonzeros((64, 64))
    sddmm = families()["csr_sddmm"]
    with pytest.raises(ConfigError, match="nothing to launch"):
        standalone(sddmm, sddmm.problem_type(64, 64, 64), sddmm.config(), empty, H100)


def test_python_gives_the_program_that_prepare_would_run() -> None:
    matrix = random_uniform(128, 256, 0.1, seed=0)
    program = sparsegen.standalone_source(
        matrix, n=64, device="nvidia-h100", family="csr_spmm", config={"registers": 128}, name="mine"
    )
    assert program.command.startswith("nvcc ") and program.command.endswith("mine.cu -o mine")
    assert "constexpr int kRegisters = 128;" in program.source and program.packed is None
    with pytest.raises(ConfigError, match="for a GPU"):
        sparsegen.standalone_source(matrix, n=64, device="emulator")
    with pytest.raises(ConfigError, match="config= needs family="):
        sparsegen.standalone_source(matrix, n=64, device="nvidia-h100", config={"tile_n": 32})


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("golden", [g for g in FIRST if g.family.name in COMPILED], ids=str)
def test_nvcc_compiles_and_links_programs(golden: Golden, tmp_path: Path) -> None:
    program = program_of(golden)
    (tmp_path / "kernel.cu").write_text(program.source, encoding="utf-8")
    compiled = subprocess.run(
        program.command.split(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert compiled.returncode == 0, compiled.stderr
    assert (tmp_path / "kernel").stat().st_size > 0
