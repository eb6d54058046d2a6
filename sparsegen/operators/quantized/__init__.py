"""Products with quantised weights: the operator, rounding to codes, and files of codes and scales."""
