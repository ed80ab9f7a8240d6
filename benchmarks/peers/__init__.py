"""Other programs that benchmarks compare rdrr with; rdrr itself never needs them."""
