"""Kernels of published systems, as baselines for the kernels of the runtime.

No graph is lowered to them. They have their own templates and snippets and read their own form of
weights, so that they stay as published when the runtime's kernels change.
"""
