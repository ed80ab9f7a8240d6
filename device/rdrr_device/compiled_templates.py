"""Compiled shader templates, kept in the user's folder so that later processes start faster.

Compiling a template to Python takes jinja2 a few milliseconds, and the passes of a model use some
50 of them. What is kept is not the WGSL but the compiled template; jinja2 compiles a template again
when its text, Python or jinja2 has changed.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket
from rdrr_format.user_folders import cache_folder


class CompiledTemplates(jinja2.FileSystemBytecodeCache):
    """Compiled templates in a folder; a folder that cannot be written is no error.

    Args:
        folder: The folder, which is made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load a compiled template, unless there is none that can be read."""
        with suppress(OSError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a compiled template if the folder can be written."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def compiled_templates(package: str, environment: jinja2.Environment) -> CompiledTemplates | None:
    """Return where the compiled templates of a package are kept; None for a user without a home.

    Args:
        package: Name of the Python package that contains the templates.
        environment: The environment, on whose options the result of compiling depends.
    """
    options = (
        environment.trim_blocks,
        environment.lstrip_blocks,
        environment.keep_trailing_newline,
        environment.autoescape,
    )
    how = sha256(repr((jinja2.__version__, options)).encode()).hexdigest()[:12]
    try:
        return CompiledTemplates(cache_folder() / "templates" / f"{package}-{how}")
    except RuntimeError:
        return None
