"""Convolutions of masked images and of points, their gradients by the weights, and what these operators share."""
