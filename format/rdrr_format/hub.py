"""Access repositories on the Hugging Face Hub through its own client and cache.

The client honours its environment variables (`HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_HOME`, `HF_TOKEN`
and others). If the hub cannot be reached the cache is used, so that what was downloaded once works
offline.
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rdrr_format.errors import RdrrError, StoreError, UsageError
from rdrr_format.file_names import check_name
from rdrr_format.locations import HubLocation
from rdrr_format.stores import Bytes, LocalStore, Store

LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


@dataclass(frozen=True)
class Listing:
    """The files of a repository.

    Attributes:
        location: The repository.
        sizes: Size of each file in bytes, by name; without those in folders.
        folder: Folder in the cache, if the hub could not be reached; it may lack files. Otherwise
            None.
        in_folders: Paths of the files in folders.
        hashes: SHA-256 of the large files, as the hub states them, by path.
    """

    location: HubLocation
    sizes: Mapping[str, int]
    folder: Path | None = None
    in_folders: frozenset[str] = field(default=frozenset())
    hashes: Mapping[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return the path of a file in the cache, and download it first if it is not there.

        Raises:
            StoreError: The file cannot be downloaded.
        """
        if self.folder is not None:
            return self.folder / name
        from huggingface_hub import hf_hub_download

        with hub_errors(self.location):
            return Path(
                hf_hub_download(self.location.repository, name, revision=self.location.revision)
            )


def list_files(location: HubLocation, marker: str) -> Listing:
    """List the files of a repository, or of its copy in the cache if the hub cannot be reached.

    Args:
        location: The repository.
        marker: Name of a file that every usable repository has; the cache has a copy of the
            repository if it has this file.

    Raises:
        UsageError: The name is not valid for a repository.
        StoreError: There is no such repository or revision, or neither hub nor cache has it.
    """
    from huggingface_hub import HfApi, errors

    with hub_errors(location):
        try:
            info = HfApi().model_info(
                location.repository, revision=location.revision, files_metadata=True
            )
        except errors.HFValidationError as error:
            raise UsageError("not a model on the hub", found=location) from error
        except errors.HfHubHTTPError:
            raise
        except Exception:  # errors of its HTTP library, which are not part of its API
            return _cached(location, marker)
    files = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    top_level = {name: size for name, size in files.items() if "/" not in name}
    large = {sibling.rfilename: sibling.lfs for sibling in info.siblings or () if sibling.lfs}
    hashes = {name: file.sha256 for name, file in large.items() if file.sha256}
    others = frozenset(files.keys() - top_level.keys())
    return Listing(location, top_level, in_folders=others, hashes=hashes)


def _cached(location: HubLocation, marker: str) -> Listing:
    from huggingface_hub import snapshot_download

    folder = Path(
        snapshot_download(
            location.repository,
            revision=location.revision,
            allow_patterns=[glob.escape(marker)],
            local_files_only=True,
        )
    )
    files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    return Listing(location, files, folder)


def download(listing: Listing, wanted: Sequence[str]) -> Path:
    """Download some files of a repository into the cache.

    Args:
        listing: The repository.
        wanted: Names of the files.

    Returns:
        The folder in the cache that holds them.

    Raises:
        StoreError: A file cannot be downloaded.
    """
    if listing.folder is not None:
        return listing.folder
    from huggingface_hub import snapshot_download

    with hub_errors(listing.location):
        return Path(
            snapshot_download(
                listing.location.repository,
                revision=listing.location.revision,
                allow_patterns=[glob.escape(name) for name in wanted],
                tqdm_class=_terminal_bar(),
            )
        )


def _terminal_bar() -> type[Any]:
    """Return the class of the client's progress bar, made silent where stderr is not a terminal."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options["disable"] = options.get("disable") or not sys.stderr.isatty()
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]

    return Bar


class HubStore:
    """A repository as a store; each file is downloaded into the cache when it is first read.

    Args:
        listing: The repository and its files.
    """

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._paths: dict[str, Path] = {}

    @property
    def hashes(self) -> Mapping[str, str]:
        """SHA-256 of the large files, as the hub states them, by name."""
        return self._listing.hashes

    def describe(self) -> str:
        """Return the repository's location."""
        return str(self._listing.location)

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return check_name(name) in self._listing.sizes

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        self._check(name)
        return self._listing.sizes[name]

    def readable(self, name: str) -> Path:
        """Return the path of a file in the cache, and download it first if it is not there.

        Raises:
            StoreError: The file cannot be downloaded.
        """
        self._check(name)
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = self._listing.path(name)
        return path

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Return bytes of a file as a read-only memory map."""
        folder = self.readable(name).parent
        return LocalStore(folder, follow_links=True).read(name, offset, size)

    def fetch(self, names: Sequence[str]) -> None:
        """Download several files at once; names that the repository lacks are ignored.

        Raises:
            StoreError: A file cannot be downloaded.
        """
        wanted = [name for name in names if self.exists(name) and name not in self._paths]
        if wanted:
            folder = download(self._listing, wanted)
            self._paths |= {name: folder / name for name in wanted}

    def open_write(self, name: str) -> BinaryIO:
        """Refuse to write a file.

        Raises:
            StoreError: Always.
        """
        raise StoreError(
            "the hub accepts only whole packages",
            where=f"{self.describe()}/{check_name(name)}",
            hint="use rdrr push",
        )

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(self._listing.sizes)

    def _check(self, name: str) -> None:
        if not self.exists(name):
            raise StoreError("no such file", where=f"{self.describe()}/{name}")


def fetch_files(store: Store, names: Sequence[str]) -> None:
    """Download files together before they are read, if the store is on the hub.

    Without this, each would be downloaded by itself when it is first read. Other stores need no
    preparation.

    Raises:
        StoreError: A file cannot be downloaded.
    """
    if isinstance(store, HubStore):
        store.fetch(names)


@contextmanager
def hub_errors(location: HubLocation) -> Iterator[None]:
    """Turn what the client raises into one-line `StoreError`s."""
    try:
        yield
    except RdrrError:
        raise
    except Exception as error:
        message, hint = _explain(error)
        raise StoreError(message, where=location, hint=hint) from error


def _explain(error: Exception) -> tuple[str, str | None]:
    """Return a message and a hint for an error of the client."""
    from huggingface_hub import errors

    table: tuple[tuple[type[Exception], str, str | None], ...] = (
        (errors.GatedRepoError, "access must be granted", f"request it on its page, then {LOG_IN}"),
        (errors.RepositoryNotFoundError, "no such repository, or a private one", LOG_IN),
        (errors.RevisionNotFoundError, "no such revision", None),
        (
            errors.LocalEntryNotFoundError,
            "the hub cannot be reached and the cache does not have it",
            "check the connection, HF_ENDPOINT and HF_HUB_OFFLINE",
        ),
        (errors.LocalTokenNotFoundError, "a token is needed", LOG_IN),
        (errors.EntryNotFoundError, "no such file in the repository", None),
    )
    for kind, message, hint in table:
        if isinstance(error, kind):
            return message, hint
    if isinstance(error, errors.HfHubHTTPError):
        return f"the hub answers {_status(error)}", LOG_IN if _status(error) in (401, 403) else None
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"the hub cannot be reached: {first}", None


def _status(error: Any) -> int:
    return int(error.response.status_code)
