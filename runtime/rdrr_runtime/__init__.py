"""Execution of packages: on a GPU through WebGPU, and in torch as the reference.

This package knows graphs, kernels, caches and decoding strategies. It does not know the names of
model families, nor how packages are made.
"""
