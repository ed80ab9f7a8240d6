"""A path under which readers find a checkpoint, wherever it is.

Paths are given back as they are. Repositories on the hub are downloaded into its cache, the files
that are needed only. For any other URL a folder is laid out for as long as the work takes: small
files are copied, weights are sparse files that are fetched in pieces when they are read (see
`_pieces`), each piece once. PyTorch files are fetched whole, since nothing but torch can tell
where in them a tensor is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from rdrr_format.errors import RdrrError, SourceError, StoreError
from rdrr_format.hub import download, list_files
from rdrr_format.locations import HubLocation, is_hub, is_url, local_path, parse_hub
from rdrr_format.opening import open_store
from rdrr_format.remote_stores import FsspecStore, HttpStore
from rdrr_format.stores import Store, read_bounded, store_errors

from rdrr_converter.sources import gguf, safetensors, torch_pickle
from rdrr_converter.sources._needed import KNOWN, Needed, needed_files
from rdrr_converter.sources._pieces import PIECE, lay_out, present
from rdrr_converter.sources.base import MAX_BESIDE

_FILES = (".safetensors", gguf.SUFFIX, *torch_pickle.SUFFIXES)


@contextmanager
def nearby(location: str | os.PathLike[str]) -> Iterator[Path]:
    """A path that `open_source` opens; for a URL it ends with the block.

    Args:
        location: A path or a URL; of a folder, or of one file of weights.

    Raises:
        UsageError: The URL has a wrong form.
        StoreError: It cannot be reached.
        SourceError: There is no checkpoint.
    """
    if not is_url(location):
        yield local_path(location)
        return
    if is_hub(location):
        yield _downloaded(parse_hub(location))
        return
    url = os.fspath(location).rstrip("/")
    with tempfile.TemporaryDirectory(prefix="rdrr-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        try:
            yield _laid_out(url, root)
        except RdrrError as error:
            _name_url(error, root, url)
            raise


def _downloaded(location: HubLocation) -> Path:
    """The checkpoint in the hub's cache."""
    listing = list_files(location, location.file or "config.json")
    if location.file is not None and location.file not in listing.sizes:
        raise StoreError("no such file in the repository", where=location)
    needed = needed_files(listing.sizes, lambda n: listing.path(n).read_bytes(), location.file)
    _check(needed, str(location), listing.sizes)
    file = location.file or _only_gguf(needed.weights, str(location))
    folder = download(listing, (*needed.beside, *needed.weights))
    return folder if file is None else folder / file


def _only_gguf(weights: Sequence[str], where: str) -> str | None:
    """The GGUF to open where the weights are one; there may be one for each quantization."""
    wholes = [name for name in weights if name.endswith(gguf.SUFFIX)]
    wholes = [name for name in wholes if gguf.part_names(name)[0] == name]
    if len(wholes) > 1:
        raise SourceError(
            "several GGUF files",
            where=where,
            found=", ".join(wholes),
            hint=f"name one of them, as in {where}/{wholes[0]}",
        )
    return wholes[0] if wholes else None


def _laid_out(url: str, root: Path) -> Path:
    """Lay out the checkpoint in a folder of its own name, which names the package."""
    folder_url, file = url, None
    if PurePosixPath(url).suffix in _FILES:
        folder_url, _, file = url.rpartition("/")
    store = open_store(folder_url)
    names = _names(store, file)
    needed = needed_files(names, lambda name: read_bounded(store, name, MAX_BESIDE), file)
    _check(needed, url, names)
    file = file or _only_gguf(needed.weights, url)
    folder = root / (folder_url.rpartition("/")[2] or "model")
    with store_errors(folder):
        folder.mkdir()
    for name in needed.beside:
        with store_errors(folder / name):
            (folder / name).write_bytes(read_bounded(store, name, MAX_BESIDE))
    for name in needed.weights:
        if name in names:  # the reader says which one is missing
            _check_ranges(store, name)
            path = lay_out(store, name, folder)
            if path.suffix in torch_pickle.SUFFIXES:
                present(path, 0, path.stat().st_size)
    return folder if file is None else folder / file


def _check_ranges(store: Store, name: str) -> None:
    """Refuse a web server that would send the whole file for every piece of it."""
    if isinstance(store, HttpStore) and store.size(name) > PIECE and not store.serves_ranges(name):
        raise SourceError(
            "the server gives no parts of files",
            where=f"{store.describe()}/{name}",
            hint="download the checkpoint and convert it from there",
        )


def _names(store: Store, file: str | None) -> list[str]:
    """The files of the folder; those that were asked for where nothing lists them."""
    if isinstance(store, FsspecStore):
        return store.list_or_empty()
    known = [name for name in KNOWN if store.exists(name)]
    index = next((n for n in (safetensors.INDEX, torch_pickle.INDEX) if n in known), None)
    asked = [] if file is None else list(gguf.part_names(file))
    if file is None and index is not None:
        needed = needed_files(known, lambda name: read_bounded(store, name, MAX_BESIDE))
        asked = list(needed.weights)
    return known + [name for name in asked if name not in known and store.exists(name)]


def _check(needed: Needed, url: str, names: Collection[str]) -> None:
    if not names:
        raise SourceError("no such checkpoint", where=url)
    if not needed.weights:
        raise SourceError(
            "not a checkpoint that can be read",
            where=url,
            expected="safetensors, PyTorch or GGUF weights",
            found=", ".join(sorted(names)[:8]),
        )
    if any(name.endswith(torch_pickle.SUFFIXES) for name in needed.weights):
        torch_pickle.check_torch(url)


def _name_url(error: RdrrError, root: Path, url: str) -> None:
    """Let a message name the URL, not the folder that stood for it."""
    if error.where is None or str(root) not in error.where:
        return
    base = url if PurePosixPath(url).suffix not in _FILES else url.rpartition("/")[0]
    stood = root / (base.rpartition("/")[2] or "model")
    error.where = error.where.replace(str(stood), base)
    error.args = (error.line(),)
