"""Calls from PyTorch: tensors checked, devices found, operators prepared once and launched."""
