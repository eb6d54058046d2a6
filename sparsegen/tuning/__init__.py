"""The tuner's parts: search space, surrogate, search, compile-ahead, supervised measuring, finalists.

`sparsegen.tuner` puts them together and is what other modules import.
"""
