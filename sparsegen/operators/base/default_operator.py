"""The operator of calls that name none; here alone, since reading it imports no operator."""

DEFAULT_OPERATOR = "spmm"
