"""Parsed C declarations, kept in the user's folder so that later processes start faster.

Whoever imports wgpu-py has cffi parse the header of wgpu-native: a quarter of a second of Python,
the longest step up to the first token. What is kept is the syntax tree that the parser of cffi
returns for a text. Text, parser, cffi and Python name its file, so it is never a tree of others.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from rdrr_format.errors import StoreError
from rdrr_format.stores import replace_file
from rdrr_format.user_folders import cache_folder


class KeptTrees:
    """A parser of C that keeps what it has parsed.

    Args:
        parser: Parses what has not been kept.
        folder: Where syntax trees are kept; one that cannot be written is no error.
        versions: What the trees depend on besides the texts.
    """

    def __init__(self, parser: Any, folder: Path, versions: tuple[str, ...]) -> None:
        self._parser, self._folder, self._versions = parser, folder, versions

    def parse(self, text: str) -> Any:
        """Return the syntax tree of a text."""
        digest = sha256("\n".join((*self._versions, text)).encode()).hexdigest()
        path = self._folder / f"{digest}.pickle"
        with suppress(Exception):  # a damaged file may raise anything, and is replaced
            return pickle.loads(path.read_bytes())
        tree = self._parser.parse(text)
        with suppress(OSError, StoreError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, pickle.dumps(tree))
        return tree


@contextmanager
def kept_declarations() -> Iterator[None]:
    """Let cffi keep what it parses within the block, or parse as usual if that is not possible.

    This needs internals of cffi (tested with 2.0 and 2.1). A folder of the user is trusted, see
    docs/SECURITY.md: like compiled Python, a syntax tree in it is read as it is.
    """
    try:
        cffi, pycparser = import_module("cffi"), import_module("pycparser")
        cparser: Any = import_module("cffi.cparser")
        parser, folder = cparser._get_parser(), cache_folder() / "declarations"
    except (ImportError, AttributeError, RuntimeError):
        yield
        return
    versions = (sys.version, cffi.__version__, pycparser.__version__)
    cparser._parser_cache = KeptTrees(parser, folder, versions)
    try:
        yield
    finally:
        cparser._parser_cache = parser
