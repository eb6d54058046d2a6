"""A kernel family of one's own: a thread for each element of C walks its row of A. ../custom_family.py uses it."""

from dataclasses import dataclass
from pathlib import Path

from sparsegen.kernels.base import Constraint, Family
from sparsegen.kernels.config import Config, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.csr import packed_csr
from sparsegen.operators import Epilogue, Layout, SpmmProblem


@dataclass(frozen=True)
class RowSpmmConfig(Config):
    threads: int = tunable(128, (64, 128, 256), "threads of a block")


class RowSpmm(Family[SpmmProblem, RowSpmmConfig]):
    name = "row_spmm"
    summary, source = "a thread for each element of C, along its row of A", "no paper: two loops"
    template, template_folder = "row_spmm.cu.j2", Path(__file__).parent
    size_names, packed_names = ("m", "n"), ("row_offsets", "column_indices", "values")

    def scope(self, problem):
        plain = (problem.layout, problem.epilogue, problem.batch) == (Layout.ROW, Epilogue.NONE, 1)
        yield Constraint(plain, "B and C are row-major, and there is neither an epilogue nor a batch")

    def constraints(self, problem, config, device):
        yield from self.scope(problem)
        yield Constraint(problem.m * problem.n < 2**31, "C has fewer than 2³¹ elements")

    def constants(self, problem, config):
        return {"dtype": problem.dtype.value}

    def pack(self, problem, config, matrix):
        return packed_csr(problem, matrix)

    def launch(self, problem, config, sizes, device):
        return Launch((-(-problem.m * problem.n // config.threads), 1, 1), (config.threads, 1, 1))

    def heuristic(self, problem, features, device):
        return RowSpmmConfig()

    def analytic_us(self, problem, features, config, device):
        return device.expected_rates.launch_us + features.nnz * problem.n / device.cycles_per_us


FAMILY = RowSpmm()
