"""Weights in files: one module for each container, which reads tensor by tensor and writes the pruned copy."""
