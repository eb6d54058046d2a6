"""Dense matrix plus or minus a sparse one."""

OPERATORS = ("dense_sparse_add",)
