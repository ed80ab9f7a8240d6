"""Other programs that benchmarks measure beside this one; rdrr never needs them."""
