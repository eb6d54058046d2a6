"""What `sparsegen` exports: one line a name, which type checkers and `__init__.py` both read."""

from sparsegen.api import load_operator as load_operator
from sparsegen.api import lookup as lookup
from sparsegen.api import prepare as prepare
from sparsegen.api import tune as tune
from sparsegen.attention.choice import Way as Way
from sparsegen.attention.fused import FusedAttentionOperator as FusedAttentionOperator
from sparsegen.attention.steps import AttentionOperator as AttentionOperator
from sparsegen.attention.steps import prepare_attention as prepare_attention
from sparsegen.dispatch.choice import Choice as Choice
from sparsegen.dispatch.choice import How as How
from sparsegen.dispatch.choice import OnMiss as OnMiss
from sparsegen.errors import SparsegenError as SparsegenError
from sparsegen.matrix.formats import CsrMatrix as CsrMatrix
from sparsegen.matrix.formats import as_csr as as_csr
from sparsegen.matrix.load import load_matrix as load_matrix
from sparsegen.operators import Block as Block
from sparsegen.operators import Density as Density
from sparsegen.operators import DsdOperator as DsdOperator
from sparsegen.operators import DsdProblem as DsdProblem
from sparsegen.operators import DsdTransposedOperator as DsdTransposedOperator
from sparsegen.operators import DsdTransposedProblem as DsdTransposedProblem
from sparsegen.operators import DType as DType
from sparsegen.operators import Epilogue as Epilogue
from sparsegen.operators import ItemValues as ItemValues
from sparsegen.operators import Layout as Layout
from sparsegen.operators import Operator as Operator
from sparsegen.operators import SddmmEpilogue as SddmmEpilogue
from sparsegen.operators import SddmmOperator as SddmmOperator
from sparsegen.operators import SddmmProblem as SddmmProblem
from sparsegen.operators import SddOperator as SddOperator
from sparsegen.operators import SddProblem as SddProblem
from sparsegen.operators import SoftmaxBackwardOperator as SoftmaxBackwardOperator
from sparsegen.operators import SoftmaxBackwardProblem as SoftmaxBackwardProblem
from sparsegen.operators import SoftmaxOperator as SoftmaxOperator
from sparsegen.operators import SoftmaxProblem as SoftmaxProblem
from sparsegen.operators import SparseAttentionOperator as SparseAttentionOperator
from sparsegen.operators import SparseAttentionProblem as SparseAttentionProblem
from sparsegen.operators import SparseOperator as SparseOperator
from sparsegen.operators import SpmmProblem as SpmmProblem
from sparsegen.plan.saved_operator import save_operator as save_operator
from sparsegen.pruning.pruner import prune as prune

__version__: str
