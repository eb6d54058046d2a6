"""CUDA devices: PyCUDA and the driver run, NVRTC, PyCUDA or nvcc compile."""
