"""Stores behind URLs: plain web servers, and any file system that fsspec knows (s3, gs, memory...).

Web servers are read with the standard library alone, so a package can be opened from an http URL
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
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from rdrr_format.errors import StoreError
from rdrr_format.extras import install_hint
from rdrr_format.file_names import check_name
from rdrr_format.stores import Bytes, Store, store_errors

_TIMEOUT_SECONDS = 60
_MAX_UNKNOWN_LENGTH = 64 << 20
"""Largest number of bytes that are read of a response without `Content-Length`."""

PIECE_BYTES = 64 << 20
"""Bytes of a large file that are requested at a time."""

_SILENT = logging.NullHandler()
_MAX_LENGTH_DIGITS = 18  # such a number fits 64 bits
_NOT_FOUND = (404, 410)
_EXTRAS: Mapping[str, str] = MappingProxyType({"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"})
"""The extra that installs the client of a protocol, by the scheme of its URLs."""


class _WebRedirects(HTTPRedirectHandler):
    """Follows redirects to web servers only, of which Python's own handler also allows FTP."""

    def redirect_request(self, req: Request, fp: Any, *answer: Any) -> Request | None:
        """Return the request of a redirect.

        Raises:
            StoreError: The new URL is not that of a web server.
        """
        target = str(answer[-1])
        if not target.startswith(("http://", "https://")):
            fp.close()
            raise StoreError(
                "the server redirects to something else than a web server",
                where=req.full_url,
                expected="http:// or https://",
                found=target,
            )
        return super().redirect_request(req, fp, *answer)


class HttpStore:
    """A folder on a web server, which can be read but neither listed nor written.

    Args:
        url: URL of the folder; it must not have a query string.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._opener = build_opener(_WebRedirects)

    def describe(self) -> str:
        """Return the folder's URL."""
        return self._url

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        try:
            self._request(name, "HEAD")
        except _MissingError:
            return False
        return True

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        headers, _ = self._request(name, "HEAD")
        length = headers.get("Content-Length")
        if length is None:
            raise StoreError("the server does not state the file's size", where=self._where(name))
        if not length.isdecimal() or len(length) > _MAX_LENGTH_DIGITS:
            raise StoreError(
                "the server states a size that is not a number",
                where=self._where(name),
                found=length,
            )
        return int(length)

    def serves_ranges(self, name: str) -> bool:
        """Return whether the server announces range requests; without them it sends whole files."""
        headers, _ = self._request(name, "HEAD")
        return bool(headers.get("Accept-Ranges") == "bytes")

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Return bytes of a file, with a range request if only a part is wanted."""
        if size == 0:
            return np.empty(0, np.uint8)
        if offset == 0 and size is None:
            return np.frombuffer(self._request(name, "GET")[1], np.uint8)
        end = "" if size is None else offset + size - 1
        asked = {"Range": f"bytes={offset}-{end}"}
        # A server that ignores the range sends the file from its first byte on.
        limit = None if size is None else offset + size
        headers, content = self._request(name, "GET", asked, limit)
        if headers.get("Content-Range") is None:  # the server sent the whole file
            content = content[offset:]
        return np.frombuffer(content, np.uint8)[:size]

    def open_write(self, name: str) -> BinaryIO:
        """Refuse to write a file.

        Raises:
            StoreError: Always.
        """
        raise StoreError("a web server cannot be written to", where=self._where(check_name(name)))

    def list(self) -> list[str]:
        """Refuse to list the files.

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
        limit: int | None = None,
    ) -> tuple[Any, bytes]:
        """Return the headers of the response and its body, or the first `limit` bytes of it."""
        where = self._where(check_name(name))
        request = Request(f"{self._url}/{quote(name)}", method=method, headers=headers or {})
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                if limit is None and response.headers.get("Content-Length") is None:
                    return response.headers, _read_unknown_length(response, where)
                return response.headers, response.read(limit)
        except HTTPError as error:
            kind = _MissingError if error.code in _NOT_FOUND else StoreError
            raise kind(f"the server answers {error.code} {error.reason}", where=where) from error
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise StoreError("the server cannot be reached", where=where, found=reason) from error


def _read_unknown_length(response: Any, where: str) -> bytes:
    """Return the whole body of a response that does not state its length."""
    content: bytes = response.read(_MAX_UNKNOWN_LENGTH + 1)
    if len(content) > _MAX_UNKNOWN_LENGTH:
        raise StoreError(
            "the server sends too much without stating a length",
            where=where,
            expected=f"at most {_MAX_UNKNOWN_LENGTH} bytes",
        )
    return content


class _MissingError(StoreError):
    """The server has no such file."""


class FsspecStore:
    """A folder on any file system that fsspec knows, such as S3 or Google Cloud Storage.

    Args:
        url: URL of the folder.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._url = url.rstrip("/")
        try:
            self._fs, self._root = url_to_fs(self._url)
        except Exception as error:  # each client has its own exception types
            raise StoreError(
                "URL cannot be opened",
                where=url,
                found=error,
                hint=_client_hint(url, error),
            ) from error
        # Without a handler, Python prints a client's warnings to stderr, beside our one line.
        logging.getLogger(type(self._fs).__module__.partition(".")[0]).addHandler(_SILENT)

    def describe(self) -> str:
        """Return the folder's URL."""
        return self._url

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return bool(self._call("exists", check_name(name)))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        size = self._call("size", check_name(name))
        if size is None:
            raise StoreError("the size of the file is not known", where=f"{self._url}/{name}")
        return int(size)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Return bytes of a file, fetching only the part that is wanted."""
        end = None if size is None else offset + size
        content = self._call("cat_file", check_name(name), start=offset or None, end=end)
        return np.frombuffer(content, np.uint8)

    def open_write(self, name: str) -> BinaryIO:
        """Open a new file for writing; on object stores it appears when it is closed."""
        opened: BinaryIO = self._call("open", check_name(name), "wb")
        return cast("BinaryIO", _Upload(opened, f"{self._url}/{name}"))

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""
        if self.exists(name):
            self._call("rm_file", name)

    def list_or_empty(self) -> list[str]:
        """Return the names of all files, sorted; an empty list if there is no such folder."""
        return self.list() if self._call("exists", "") else []

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""
        entries = self._call("ls", "", detail=True)
        return sorted(e["name"].rsplit("/", 1)[-1] for e in entries if e["type"] == "file")

    def _call(self, action: str, name: str, *arguments: Any, **options: Any) -> Any:
        path, where = (f"{part}/{name}".rstrip("/") for part in (self._root, self._url))
        with _client_errors(where):
            return getattr(self._fs, action)(path, *arguments, **options)


def _client_hint(url: str, error: Exception) -> str:
    """Return how to install the client of a URL's protocol, where an extra has one."""
    extra = _EXTRAS.get(url.partition("://")[0])
    if extra is not None and isinstance(error, ImportError):
        return install_hint(extra)
    remedy = "install the package that it names" * isinstance(error, ImportError)
    return f"{remedy or 'check the scheme'}, or copy the files to a local folder"


class _Upload(io.RawIOBase):
    """A file that is being written, with the client's errors translated to `StoreError`."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        super().__init__()
        self._file, self._where = file, where

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes."""
        with _client_errors(self._where):
            return self._file.write(data)

    def close(self) -> None:
        """Complete the upload; the file exists afterwards."""
        if self.closed:
            return
        try:
            with _client_errors(self._where):
                self._file.close()
        finally:
            super().close()


def piece_size(store: Store, name: str, size: int) -> int:
    """Return how many bytes of a file to request at a time, so that no byte is sent twice.

    A server without range requests sends the whole file for every request, so the whole file is
    requested at once there.

    Args:
        store: Where the file is.
        name: Name of the file.
        size: Size of the file in bytes.
    """
    if isinstance(store, HttpStore) and size > PIECE_BYTES and not store.serves_ranges(name):
        return size
    return max(1, min(size, PIECE_BYTES))


@contextmanager
def _client_errors(where: str) -> Iterator[None]:
    """Translate whatever the client of a protocol raises to a `StoreError` of one line."""
    try:
        with store_errors(where):
            yield
    except StoreError:
        raise
    except Exception as error:  # each client has its own exception types
        raise StoreError("the store cannot be reached", where=where, found=repr(error)) from error
