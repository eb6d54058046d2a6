"""Shared parts of convolutions: windows, filter volumes, words of masks, traits."""
