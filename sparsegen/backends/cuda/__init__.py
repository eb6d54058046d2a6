"""CUDA devices: PyCUDA and the driver run, NVRTC or nvcc compile."""
