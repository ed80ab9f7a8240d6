"""Decoding strategies that serve as baselines."""
