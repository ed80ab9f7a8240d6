"""The ops and the forward pass in plain torch: the oracle of the tests and the CPU backend."""
