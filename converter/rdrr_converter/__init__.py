"""Policy: from a checkpoint to a package, with every decision written into the manifest.

This package reads checkpoints, knows architectures as data, decides how each tensor is stored
and writes the package. It does not know how bytes are coded (`rdrr_format`), what makes a
manifest sound (`rdrr_manifests`) or how a package is run.
"""

from __future__ import annotations

from rdrr_format.version import __version__

__all__ = ["__version__"]
