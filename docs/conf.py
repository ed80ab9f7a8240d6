"""Sphinx configuration of the documentation site: `make docs` builds it, and a warning is an error.

Sphinx with MyST because both are maintained: MkDocs 1.x has had no release since August 2024, and
Material for MkDocs ended its support in November 2026.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "rdrr"
author = "the rdrr developers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "generated_pages",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
suppress_warnings = ["myst.strikethrough"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "rdrr"
html_copy_source = False
html_show_copyright = False
