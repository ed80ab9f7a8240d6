"""Stage a checkpoint locally, so that readers find it under a path wherever it is.

A local path is used as it is. From a repository on the hub, the files that are needed are
downloaded into its cache. For any other URL a temporary folder is created: small files are copied,
and weights are sparse files (see `_sparse_files`), of which each piece is fetched once, when it is
first read. PyTorch files are fetched whole, because only torch knows where in them a tensor is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from rdrr_format.errors import RdrrError, SourceError, StoreError
from rdrr_format.hub import download, list_files
from rdrr_format.locations import HubLocation, is_hub, is_url, local_path, parse_hub, remote_url
from rdrr_format.opening import open_store
from rdrr_format.remote_stores import FsspecStore, HttpStore
from rdrr_format.stores import Store, read_bounded, store_errors

from rdrr_converter.checkpoint.files import MAX_AUXILIARY_BYTES, read_content
from rdrr_converter.checkpoint.sparse_files import PIECE_BYTES, ensure_fetched, make_sparse_file
from rdrr_converter.gguf import source as gguf
from rdrr_converter.gguf.mmproj import is_mmproj
from rdrr_converter.sources import safetensors, torch_pickle
from rdrr_converter.sources._file_selection import (
    IN_MODULES,
    MODULES,
    PROBED_NAMES,
    CheckpointFiles,
    module_folders,
    select_files,
)

_TEMPLATES = "additional_chat_templates"
_KNOWN_TEMPLATES = ("rag.jinja", "tool_use.jinja")
"""Templates to look for on servers that cannot list their files."""

_FILES = (".safetensors", gguf.SUFFIX, *torch_pickle.SUFFIXES)


@contextmanager
def stage_locally(location: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a local path of a checkpoint for `open_source`.

    For a URL other than `hf://`, the local files are removed at the end of the `with` block.

    Args:
        location: Path or URL of a folder, or of one weight file.

    Raises:
        UsageError: The URL has a wrong form.
        StoreError: The location cannot be reached.
        SourceError: There is no checkpoint at the location.
    """
    if not is_url(location):
        yield local_path(location)
        return
    if is_hub(location):
        yield _downloaded(parse_hub(location))
        return
    url = remote_url(location)
    with tempfile.TemporaryDirectory(prefix="rdrr-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        try:
            yield _staged(url, root)
        except RdrrError as error:
            _name_url(error, root, url)
            raise


def _downloaded(location: HubLocation) -> Path:
    """Download a checkpoint into the hub's cache and return its path there."""
    listing = list_files(location, location.file or "config.json")
    if location.file is not None and location.file not in listing.sizes:
        raise StoreError("no such file in the repository", where=location)
    needed = select_files(
        listing.sizes, lambda n: read_content(listing.path(n), MAX_AUXILIARY_BYTES), location.file
    )
    _check(needed, str(location), listing.sizes)
    file = location.file or _only_gguf(needed.weights, str(location))
    modules: list[str] = []
    if MODULES in needed.auxiliary:
        folders = module_folders(read_content(listing.path(MODULES), MAX_AUXILIARY_BYTES))
        modules = [f"{module}/{name}" for module in folders for name in IN_MODULES]
    nested = [name for name in modules if name in listing.in_folders]
    nested += [name for name in listing.in_folders if fnmatch(name, f"{_TEMPLATES}/*.jinja")]
    folder = download(listing, (*needed.auxiliary, *needed.weights, *nested))
    return folder if file is None else folder / file


def _only_gguf(weights: Sequence[str], where: str) -> str | None:
    """Return the GGUF to open, or None for other weights; refuse to choose among several."""
    files = [name for name in weights if name.endswith(gguf.SUFFIX)]
    files = [name for name in files if gguf.part_names(name)[0] == name]
    files = [name for name in files if not is_mmproj(Path(name))] or files
    if len(files) > 1:
        raise SourceError(
            "there are several GGUF files",
            where=where,
            found=", ".join(files),
            hint=f"name one of them, as in {where}/{files[0]}",
        )
    return files[0] if files else None


def _staged(url: str, root: Path) -> Path:
    """Create the local files of a checkpoint in a folder of its name, which names the package."""
    folder_url, file = url, None
    if PurePosixPath(url).suffix in _FILES:
        folder_url, _, file = url.rpartition("/")
    store = open_store(folder_url)
    names = _names(store, file)
    needed = select_files(names, lambda name: read_bounded(store, name, MAX_AUXILIARY_BYTES), file)
    _check(needed, url, names)
    file = file or _only_gguf(needed.weights, url)
    folder = root / (folder_url.rpartition("/")[2] or "model")
    with store_errors(folder):
        folder.mkdir()
    for name in needed.auxiliary:
        with store_errors(folder / name):
            (folder / name).write_bytes(read_bounded(store, name, MAX_AUXILIARY_BYTES))
    _stage_templates(folder_url, folder)
    if MODULES in needed.auxiliary:
        _stage_modules(folder_url, folder)
    for name in needed.weights:
        if name in names:  # the reader reports missing shards
            _check_ranges(store, name)
            path = make_sparse_file(store, name, folder)
            if path.suffix in torch_pickle.SUFFIXES:
                ensure_fetched(path, 0, path.stat().st_size)
    return folder if file is None else folder / file


def _stage_templates(url: str, folder: Path) -> None:
    """Copy the chat templates that are in a folder of their own.

    Args:
        url: URL of the checkpoint.
        folder: Local folder.
    """
    store, target = open_store(f"{url}/{_TEMPLATES}"), folder / _TEMPLATES
    listed = isinstance(store, FsspecStore)
    names = store.list_or_empty() if isinstance(store, FsspecStore) else _KNOWN_TEMPLATES
    for name in names:
        if name.endswith(".jinja") and (listed or store.exists(name)):
            content = read_bounded(store, name, MAX_AUXILIARY_BYTES)
            with store_errors(target / name):
                target.mkdir(exist_ok=True)
                (target / name).write_bytes(content)


def _stage_modules(url: str, folder: Path) -> None:
    """Create the local files of the modules of an embedding model; missing ones are reported later.

    Args:
        url: URL of the checkpoint.
        folder: Local folder, with the list of the modules.
    """
    for module in module_folders((folder / MODULES).read_bytes()):
        store, target = open_store(f"{url}/{module}"), folder / module
        with store_errors(target):
            target.mkdir(exist_ok=True)
        for name in IN_MODULES:
            if not store.exists(name):
                continue
            if name.endswith(".json"):
                content = read_bounded(store, name, MAX_AUXILIARY_BYTES)
                with store_errors(target / name):
                    (target / name).write_bytes(content)
            else:
                _check_ranges(store, name)
                make_sparse_file(store, name, target)


def _check_ranges(store: Store, name: str) -> None:
    """Refuse a web server without range requests, which would send a whole file for every piece."""
    if (
        isinstance(store, HttpStore)
        and store.size(name) > PIECE_BYTES
        and not store.serves_ranges(name)
    ):
        raise SourceError(
            "the server does not support range requests",
            where=f"{store.describe()}/{name}",
            hint="download the checkpoint and convert the local copy",
        )


def _names(store: Store, file: str | None) -> list[str]:
    """Return the files of a folder; on a server without listings, those of the names probed."""
    if isinstance(store, FsspecStore):
        return store.list_or_empty()
    known = [name for name in PROBED_NAMES if store.exists(name)]
    index = next((n for n in (safetensors.INDEX, torch_pickle.INDEX) if n in known), None)
    names = [] if file is None else list(gguf.part_names(file))
    if file is None and index is not None:
        needed = select_files(known, lambda name: read_bounded(store, name, MAX_AUXILIARY_BYTES))
        names = list(needed.weights)
    return known + [name for name in names if name not in known and store.exists(name)]


def _check(needed: CheckpointFiles, url: str, names: Collection[str]) -> None:
    if not names:
        raise SourceError("no such checkpoint", where=url)
    if not needed.weights:
        raise SourceError(
            "not a checkpoint that can be read",
            where=url,
            expected="safetensors, PyTorch or GGUF weights",
            found=", ".join(sorted(names)[:8]),
        )


def _name_url(error: RdrrError, root: Path, url: str) -> None:
    """Replace the path of the local copy in an error by the URL."""
    if error.where is None or str(root) not in error.where:
        return
    base = url if PurePosixPath(url).suffix not in _FILES else url.rpartition("/")[0]
    local = root / (base.rpartition("/")[2] or "model")
    error.where = error.where.replace(str(local), base)
    error.args = (error.line(),)
