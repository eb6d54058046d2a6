"""Products whose block masks change with every call."""

OPERATORS = ("dsd", "dsd_transposed", "sdd")
