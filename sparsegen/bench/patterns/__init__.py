"""Patterns: distributions of a row's sparse input."""
