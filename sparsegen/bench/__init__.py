"""Side by side with what users would pick instead: suites, contenders, protocol, result files."""
