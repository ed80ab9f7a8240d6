"""Ablations: single optimizations, each measured with and without."""
