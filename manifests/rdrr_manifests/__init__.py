"""The meaning of a manifest: its fields, its validation rules, and the graph derived from it.

This package defines models of the manifest's fields, the rules that they must satisfy, the
translation of older generations of the format, and the semantic graph. It does not encode bytes
(`rdrr_format`), write packages (`rdrr_converter`) or execute graphs (`rdrr_runtime`).
"""
