"""The papers' own experiments, a study each: one command, one raw file, one section of docs/papers.md.

python -m benchmarks.papers.STUDY [--data FOLDER]      # at most ten minutes; given again, it goes on
python -m benchmarks.papers [--data FOLDER]            # all of them, one behind the other, until all are complete
python -m benchmarks.papers.page                       # docs/papers.md and its figures, from the raw files
"""
