"""Products of dense rows sampled at a pattern: the families, and what only they use."""

OPERATORS = ("sddmm",)
