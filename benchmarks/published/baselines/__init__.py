"""Kernels of published systems, kept to be measured beside those of the runtime.

No graph is lowered to them. They bring their own templates and snippets and read their own form of
weights, so that they stay as published when the runtime's kernels change.
"""
