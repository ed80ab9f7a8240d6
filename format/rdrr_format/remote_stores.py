"""Stores behind URLs: plain web servers, and whatever fsspec knows (s3, gs, memory...).

Web servers are read with the standard library alone, so that a package can be opened from a URL
without optional dependencies.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from types import MappingProxyType
from typing import Any, BinaryIO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np

from rdrr_format.errors import StoreError
from rdrr_format.extras import install_hint
from rdrr_format.file_names import check_name
from rdrr_format.stores import Bytes, Store, store_errors

_TIMEOUT_SECONDS = 60
_MOST_UNSTATED = 64 << 20
"""Bytes that are read of an answer without `Content-Length`."""

PIECE_BYTES = 64 << 20
"""Bytes of a large file that are asked for at a time."""

_SILENT = logging.NullHandler()
_DIGITS = 18
_NOT_FOUND = (404, 410)
_EXTRAS: Mapping[str, str] = MappingProxyType({"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"})
"""The extra that installs the client of a protocol, by the scheme of its URLs."""


class HttpStore:
    """A folder on a web server. It can be read; a web server has no listing and takes no files.

    Args:
        url: URL of the folder; a query is not supported.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def describe(self) -> str:
        """The folder's URL."""
        return self._url

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        try:
            self._request(name, "HEAD")
        except _MissingError:
            return False
        return True

    def size(self, name: str) -> int:
        """Bytes of a file."""
        headers, _ = self._request(name, "HEAD")
        length = headers.get("Content-Length")
        if length is None:
            raise StoreError("the server does not tell the file's size", where=self._where(name))
        if not length.isdecimal() or len(length) > _DIGITS:
            raise StoreError("no size of a file", where=self._where(name), found=length)
        return int(length)

    def serves_ranges(self, name: str) -> bool:
        """Whether the server says that it gives parts of a file; otherwise each costs the whole."""
        headers, _ = self._request(name, "HEAD")
        return bool(headers.get("Accept-Ranges") == "bytes")

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Bytes of a file, by a range request where only a part is wanted."""
        if size == 0:
            return np.empty(0, np.uint8)
        if offset == 0 and size is None:
            return np.frombuffer(self._request(name, "GET")[1], np.uint8)
        end = "" if size is None else offset + size - 1
        asked = {"Range": f"bytes={offset}-{end}"}
        most = None if size is None else offset + size
        headers, content = self._request(name, "GET", asked, most)
        if headers.get("Content-Range") is None:  # the server sent the whole file
            content = content[offset:]
        return np.frombuffer(content, np.uint8)[:size]

    def open_write(self, name: str) -> BinaryIO:
        """Always refused.

        Raises:
            StoreError: Always.
        """
        raise StoreError("a web server cannot be written to", where=self._where(check_name(name)))

    def list(self) -> list[str]:
        """Always refused.

        Raises:
            StoreError: Always.
        """
        raise StoreError("a web server does not list its files", where=self._url)

    def _where(self, name: str) -> str:
        return f"{self._url}/{name}"

    def _request(
        self,
        name: str,
        method: str,
        headers: dict[str, str] | None = None,
        most: int | None = None,
    ) -> tuple[Any, bytes]:
        """Headers of the answer, and its first bytes: `most`, or all that it says it has."""
        where = self._where(check_name(name))
        request = Request(f"{self._url}/{quote(name)}", method=method, headers=headers or {})
        try:
            with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                if most is None and answer.headers.get("Content-Length") is None:
                    return answer.headers, _unstated(answer, where)
                return answer.headers, answer.read(most)
        except HTTPError as error:
            kind = _MissingError if error.code in _NOT_FOUND else StoreError
            raise kind(f"the server answers {error.code} {error.reason}", where=where) from error
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise StoreError("the server cannot be reached", where=where, found=reason) from error


def _unstated(answer: Any, where: str) -> bytes:
    """The whole of an answer that does not say how long it is."""
    content: bytes = answer.read(_MOST_UNSTATED + 1)
    if len(content) > _MOST_UNSTATED:
        raise StoreError(
            "the server does not say how much it sends, and does not end",
            where=where,
            expected=f"at most {_MOST_UNSTATED} bytes",
        )
    return content


class _MissingError(StoreError):
    """The server has no such file."""


class FsspecStore:
    """A folder behind any URL that fsspec knows.

    Args:
        url: URL of the folder.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._url = url.rstrip("/")
        try:
            self._fs, self._root = url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise StoreError(
                "URL cannot be opened",
                where=url,
                found=error,
                hint=_client_hint(url, error),
            ) from error
        # What a client logs reaches whoever asks for logs; stderr is for our one line.
        logging.getLogger(type(self._fs).__module__.partition(".")[0]).addHandler(_SILENT)

    def describe(self) -> str:
        """The folder's URL."""
        return self._url

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return bool(self._call("exists", check_name(name)))

    def size(self, name: str) -> int:
        """Bytes of a file."""
        found = self._call("size", check_name(name))
        if found is None:
            raise StoreError("the size is not known", where=f"{self._url}/{name}")
        return int(found)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Bytes of a file, fetching only the part that is wanted."""
        end = None if size is None else offset + size
        content = self._call("cat_file", check_name(name), start=offset or None, end=end)
        return np.frombuffer(content, np.uint8)

    def open_write(self, name: str) -> BinaryIO:
        """A new file; on object stores it appears when it is closed."""
        opened: BinaryIO = self._call("open", check_name(name), "wb")
        return cast("BinaryIO", _Upload(opened, f"{self._url}/{name}"))

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""
        if self.exists(name):
            self._call("rm_file", name)

    def list_or_empty(self) -> list[str]:
        """Names of all files, sorted; none where there is no such folder."""
        return self.list() if self._call("exists", "") else []

    def list(self) -> list[str]:
        """Names of all files, sorted."""
        entries = self._call("ls", "", detail=True)
        return sorted(e["name"].rsplit("/", 1)[-1] for e in entries if e["type"] == "file")

    def _call(self, action: str, name: str, *arguments: Any, **options: Any) -> Any:
        path, where = (f"{part}/{name}".rstrip("/") for part in (self._root, self._url))
        with _client_errors(where):
            return getattr(self._fs, action)(path, *arguments, **options)


def _client_hint(url: str, error: Exception) -> str:
    """Return how to install the client of a URL's protocol, where an extra has one."""
    extra = _EXTRAS.get(url.partition("://")[0].lower())
    if extra is not None and isinstance(error, ImportError):
        return install_hint(extra)
    return "install what the message names, or copy the package here"


class _Upload(io.RawIOBase):
    """A file that is being written, whose client's errors are ours."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        super().__init__()
        self._file, self._where = file, where

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes."""
        with _client_errors(self._where):
            return self._file.write(data)

    def close(self) -> None:
        """Finish; the file is there afterwards."""
        if self.closed:
            return
        try:
            with _client_errors(self._where):
                self._file.close()
        finally:
            super().close()


def piece_size(store: Store, name: str, size: int) -> int:
    """Bytes of a file to ask for at a time, so that none is sent twice.

    Args:
        store: Where the file is.
        name: The file.
        size: Its bytes; a server that gives no parts is asked for all of them.
    """
    if isinstance(store, HttpStore) and size > PIECE_BYTES and not store.serves_ranges(name):
        return size
    return max(1, min(size, PIECE_BYTES))


@contextmanager
def _client_errors(where: str) -> Iterator[None]:
    """Turn whatever the client of a protocol raises into one-line `StoreError`s."""
    try:
        with store_errors(where):
            yield
    except StoreError:
        raise
    except Exception as error:  # each client has errors of its own
        raise StoreError("cannot be reached", where=where, found=repr(error)) from error
