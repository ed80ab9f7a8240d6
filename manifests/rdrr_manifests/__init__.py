"""Meaning: what a manifest says, whether it is sound, and the graph that follows from it.

This package knows models of the manifest's fields, the rules they must obey, older generations
of the format and the semantic graph. It does not know how bytes are coded (`rdrr_format`), how
packages are made (`rdrr_converter`) or how a graph is executed (`rdrr_runtime`).
"""
