"""SpMM of weights whose values are codes of few bits: the families, and what only they use."""

OPERATORS = ("quantized_spmm",)
