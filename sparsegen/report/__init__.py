"""One offline HTML page from result files and a tuning database; `sparsegen.report.build` is the way in."""
