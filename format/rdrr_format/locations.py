"""Locations as users type them: a path, a URL, or a repository on the Hugging Face Hub.

Nothing is opened here, but every path from a user is checked here first and refused if it is not
valid on any file system. A `file://` URL is a path. `hf://` has its own form, because a repository
name with a revision is not a path.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rdrr_format.errors import UsageError

HUB = "hf://"
_WEB = ("http", "https")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(::.+)?")
"""Schemes that are joined by `::` are filters of fsspec."""

_WITHOUT_SLASHES = re.compile(r"(https?|hf|s3|gs|file):(?!//)", re.IGNORECASE)
_UNESCAPED = re.compile(r"[^!-~]")
_FILE = "file://"
_IMPOSSIBLE = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
"""Errors of the operating system for names that are too long or have invalid characters."""

_REPOSITORY = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@]+))?(/(?P<file>[^/]+))?/?"
)


@dataclass(frozen=True)
class HubLocation:
    """A model repository on the hub.

    Attributes:
        repository: `org/name`.
        revision: Branch, tag or commit; None for the default branch.
        file: Name of one file, or None for the whole repository.
    """

    repository: str
    revision: str | None = None
    file: str | None = None

    @property
    def name(self) -> str:
        """The repository's name without its owner."""
        return self.repository.partition("/")[2]

    def __str__(self) -> str:
        """Return the location as a user would type it."""
        revision = f"@{self.revision}".replace("/", "%2F") if self.revision else ""
        return f"{HUB}{self.repository}{revision}" + (f"/{self.file}" if self.file else "")


def is_hub(location: str | os.PathLike[str]) -> bool:
    """Return whether the location names a repository on the hub."""
    return os.fspath(location).startswith(HUB)


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return whether the location is remote (`hf://` included) rather than a local path."""
    text = os.fspath(location)
    return "://" in text and not text.startswith(_FILE)


def remote_url(location: str | os.PathLike[str]) -> str:
    """Return the URL of a remote location, without slashes at its end.

    Raises:
        UsageError: It has no valid scheme, or names nothing. On a web server: the host or the port
            is impossible, or there is a user name, a query, or a character that must be escaped.
    """
    text = os.fspath(location)
    scheme, _, rest = text.partition("://")
    if not _SCHEME.fullmatch(scheme):
        is_upper = _SCHEME.fullmatch(scheme.lower()) is not None
        expected = f"{scheme.lower()}://" if is_upper else "a scheme such as https://"
        raise UsageError("the URL has no valid scheme", expected=expected, found=text)
    if scheme in _WEB:
        _check_web(text)
    elif not rest.strip("/") and scheme != "memory":
        raise UsageError("the URL names nothing", expected=f"{scheme}://NAME", found=text)
    return text.rstrip("/")


def _check_web(url: str) -> None:
    """Check a URL of a web server, of whose parts Python's client checks few."""
    if wrong := _UNESCAPED.search(url):
        raise UsageError(
            "the URL has a character that must be escaped",
            where=url,
            expected="ASCII characters, and %20 for a space",
            found=repr(wrong[0]),
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
        host.encode("idna")
    except ValueError as error:
        raise UsageError("the URL has an impossible host or port", where=url, found=error) from None
    if "@" in parts.netloc:  # the message does not repeat a password
        raise UsageError(
            "the URL holds a user name or a password",
            where=f"{parts.scheme}://{host}",
            expected="a server that can be read without",
            hint="download the folder and name the local copy",
        )
    if not host or port == 0:
        expected = "https://HOST/..., with a port from 1 to 65535 if any"
        raise UsageError("the URL has an impossible host or port", where=url, expected=expected)
    if "?" in url or "#" in url:
        raise UsageError(
            "the URL has a query or a fragment",
            where=url,
            expected="the address of a folder, to which names of files are appended",
        )


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the path of a local location, which need not exist.

    Raises:
        UsageError: The path is empty, or not valid on any file system, or is a URL that was written
            wrongly.
    """
    location = os.fspath(location)
    text = location.removeprefix(_FILE)
    if (match := _WITHOUT_SLASHES.match(location)) or (text != location and text[:1] not in "/"):
        expected = f"{match[1].lower()}://..." if match else "file:///PATH, with the whole path"
        raise UsageError("the URL has a wrong form", expected=expected, found=location)
    if not text:
        # An unset shell variable; `Path("")` would silently mean the current folder.
        raise UsageError(
            "the path is empty", expected="a path or URL", hint="for the current folder write ."
        )
    try:
        os.lstat(text)
    except ValueError:  # a NUL character, or half of a surrogate pair
        raise UsageError(
            "the path is not valid on any file system",
            expected="no NUL, and characters that the file system can store",
            found=repr(text),
        ) from None
    except OSError as error:
        if error.errno in _IMPOSSIBLE:
            raise UsageError(
                "the path is not valid on any file system", where=text, found=error.strerror
            ) from None
    return Path(text)


def parse_hub(location: str | os.PathLike[str]) -> HubLocation:
    """Parse `hf://org/name[@revision][/file]`; a slash in a revision is written as `%2F`.

    Raises:
        UsageError: The location has another form.
    """
    text = os.fspath(location)
    match = _REPOSITORY.fullmatch(text.removeprefix(HUB))
    if match is None or any(part in (".", "..") for part in match["repository"].split("/")):
        raise UsageError(
            "not a model on the hub", expected="hf://org/name[@revision][/file]", found=text
        )
    revision = match["revision"]
    return HubLocation(
        match["repository"], revision and re.sub("%2f", "/", revision, flags=re.I), match["file"]
    )
