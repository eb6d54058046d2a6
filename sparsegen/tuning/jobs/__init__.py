"""Jobs for GPUs that cannot be reached: a bundle that runs without sparsegen, and its result file (docs/bundles.md).

`export` makes a bundle, `bundle` and `job` read one, `runner` measures what it asks for on the machine that it was
carried to, `results` writes and reads what came of it. Bundles and results are data from strangers to whoever reads
them: sizes are bounded, every value is checked, nothing is unpickled, and no code comes from a result.
"""
