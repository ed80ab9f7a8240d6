"""Measure the decode modes of published systems: how they submit, allocate and read back."""
