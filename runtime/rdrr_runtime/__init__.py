"""Execution: graphs on a GPU through WebGPU, and the torch reference that proves them.

This package knows graphs, kernels, caches and decoding strategies. It never learns the name of a
model family, and it does not know how packages are made.
"""
