"""Side by side with what users would pick instead: suites, baselines, protocol, result files."""
