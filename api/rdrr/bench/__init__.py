"""What `rdrr bench` measures. Nothing is printed here, and nothing is measured on import."""
