"""Foundations of every operator: problems, fields, operands, references, costs."""
