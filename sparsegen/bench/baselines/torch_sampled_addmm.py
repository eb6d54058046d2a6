"""PyTorch's `torch.sparse.sampled_addmm`: its wrapper of cuSPARSE's SDDMM."""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen.bench.baseline.baseline import Implementation, Stopwatch, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, TorchBaseline, import_torch, nbytes, to_tensor
from sparsegen.bench.results.results import Kind
from sparsegen.operators import SddmmProblem


class TorchSampledAddmm(TorchBaseline):
    name, kind = "torch-sampled-addmm", Kind.SPARSE
    operators = (SddmmProblem,)

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        torch, problem = import_torch(), bench.problem_as(SddmmProblem)
        a, b = (to_tensor(bench.operand(name), problem.dtype) for name in ("a", "b"))
        watch = Stopwatch()
        offsets, columns = to_tensor(bench.matrix.row_offsets), to_tensor(bench.matrix.column_indices)
        result = TensorResult(bench, problem.result(bench.matrix.nnz).shape)
        pattern = torch.sparse_csr_tensor(
            offsets, columns, result.tensor, size=problem.matrix_shape, check_invariants=False
        )
        result.tensor = pattern.values()

        def run() -> None:
            torch.sparse.sampled_addmm(pattern, a, b.t(), beta=0.0, out=pattern)

        def clear() -> None:
            result.tensor.zero_()  # it scales what was there by 0; no right result is all zeros

        clear()
        try:
            run()
        except RuntimeError as error:
            if "not implemented" in str(error) or "Expected" in str(error):
                raise UnsupportedError(str(error).partition("\n")[0]) from error
            raise
        torch.cuda.synchronize()
        yield Implementation(
            "result in place", run, clear, result.read, watch.lap(), nbytes(offsets, columns)
        )


BASELINES = (TorchSampledAddmm(),)
