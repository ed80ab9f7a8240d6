"""Published systems replayed with this runtime: decode modes, single optimizations, kernels."""
