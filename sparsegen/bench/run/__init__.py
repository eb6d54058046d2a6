"""Rows measured: requests, processes, turns."""
