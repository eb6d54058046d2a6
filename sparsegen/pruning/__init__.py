"""Pruning: which weights stay, for patterns that sparse kernels like. Pure NumPy; `pruner` is the way in.

A pattern sorts a layer's weights into groups that stay or go together (`groups.py`), one cut through the groups of a
layer or of all layers decides which stay (`cut.py`), and the pattern makes a mask of them.
"""
