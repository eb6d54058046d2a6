"""Results: their types, files, merging, summaries and comparison."""
