"""Single kernels: matrix products in every storage form, and pairs of kernels for the same work."""
