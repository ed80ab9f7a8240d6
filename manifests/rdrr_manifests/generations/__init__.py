"""Translate manifests of three generations, all of which state version 1, into the current one.

A generation is recognised by its fields, not by its version. All functions work on JSON values and
never fail: a value of an unexpected type is left as it is, and the rules report it later.
"""

from rdrr_manifests.generations.normalize import detect, normalize
from rdrr_manifests.generations.normalized import Generation, Normalized

__all__ = ["Generation", "Normalized", "detect", "normalize"]
