"""Other programs that benchmarks measure beside this one; never needed to run it."""
