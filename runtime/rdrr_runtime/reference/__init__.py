"""The ops and the forward pass in plain torch: the reference of the tests and the CPU backend."""
