"""The version of the project, stated here only: the build backend and the commands read it."""

from __future__ import annotations

__version__ = "0.1.0"
