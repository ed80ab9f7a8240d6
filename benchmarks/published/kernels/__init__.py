"""Kernels alone: ours in every form of a matrix, and in pairs with those of published systems."""
