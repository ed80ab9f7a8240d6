"""Three generations of manifests, all called version 1, read into the current one.

A generation is recognised by what it has, not by its version. Everything here works on JSON
values and is total: what has an unexpected type is left as it is, for the rules to name.
"""

from rdrr_manifests.generations.normalize import detect, normalize
from rdrr_manifests.generations.normalized import Generation, Normalized

__all__ = ["Generation", "Normalized", "detect", "normalize"]
