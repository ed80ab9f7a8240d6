"""Published systems replayed around the kernels of this runtime: decode modes, changes, kernels."""
