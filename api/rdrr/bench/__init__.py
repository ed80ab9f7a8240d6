"""What `rdrr bench PATH` measures. Nothing is printed here, and nothing is measured on import."""
