"""The search for the fastest variant: space, surrogate, compile-ahead, ledger, finalists; and whole models.

`sparsegen.tuning.tuner` puts them together.
"""
