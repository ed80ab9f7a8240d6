"""Conversion of a checkpoint to a package, with every decision recorded in the manifest.

This component reads checkpoints, describes architectures as data, decides how each tensor is
stored and writes the package. How tensors are encoded is the matter of `rdrr_format`, what makes
a manifest valid is the matter of `rdrr_manifests`, and nothing here runs a package.
"""

from __future__ import annotations

from rdrr_format.version import __version__

__all__ = ["__version__"]
