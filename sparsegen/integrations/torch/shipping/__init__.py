"""Models that leave sparsegen: exported programs that call the kernels of a shared library."""
