"""C declarations that cffi compiles once, kept in the user's folder for faster starts.

Whoever imports wgpu-py has cffi parse the header of wgpu-native, and each C type when it is first
named: half a second of Python, the longest step up to the first token. cffi can write what it has
parsed as a module (`FFI.compile`), which loads in less than a millisecond and parses types
in C. The text and the version of cffi name its file, so it is never a module of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rdrr_format.user_folders import cache_folder


class CompiledFFI:
    """Stands in for `cffi.FFI` of a library that is opened by `dlopen` and declared by one text."""

    def cdef(self, text: str) -> None:
        """Take all functions of the compiled declarations of a text."""
        compiled = compiled_declarations(text)
        names = (name for name in dir(compiled) if not name.startswith("__"))
        self.__dict__.update({name: getattr(compiled, name) for name in names})

    def set_source(self, name: str, source: None) -> None:
        """Do nothing: the module has a name already."""


def compiled_declarations(text: str) -> Any:
    """Return the compiled declarations of a text, from the user's folder if they are there.

    A folder of the user is trusted, see docs/SECURITY.md: like compiled Python, a module in it is
    loaded as it is. A folder that cannot be written is no error.
    """
    _cffi_backend: Any = import_module("_cffi_backend")

    digest = sha256(f"{_cffi_backend.__version__}\n{text}".encode()).hexdigest()
    path = cache_folder() / "declarations" / f"declared_{digest}.py"
    with suppress(Exception):  # a file that is missing or damaged is written again
        return _loaded(path)
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _compiled(text, path)
    with TemporaryDirectory() as folder:
        return _compiled(text, Path(folder) / path.name)


def _compiled(text: str, path: Path) -> Any:
    """Compile declarations into a module and load it."""
    declared = import_module("cffi.api").FFI()  # `cffi.FFI` may be the class above
    declared.cdef(text)
    declared.set_source(path.stem, None)
    declared.compile(str(path.parent))  # the file appears under its name when it is complete
    return _loaded(path)


def _loaded(path: Path) -> Any:
    """Return the declarations of a module."""
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi


@contextmanager
def kept_declarations() -> Iterator[None]:
    """Let modules that are imported within the block declare libraries by `CompiledFFI`."""
    cffi: Any = import_module("cffi")
    plain, cffi.FFI = cffi.FFI, CompiledFFI
    try:
        yield
    finally:
        cffi.FFI = plain
