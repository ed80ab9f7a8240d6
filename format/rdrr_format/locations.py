"""What a user typed for a place: a path, a URL, or a repository on the Hugging Face Hub.

Nothing is opened here, but every path that a user gives is looked at here first: one that no file
system takes is refused. A `file://` URL is a path; `hf://` has a form of its own, because a
repository's name and revision are not a path.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rdrr_format.errors import UsageError

HUB = "hf://"
_FILE = "file://"
_IMPOSSIBLE = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
"""What a system says of a name that it never takes: too long, or of characters that it refuses."""

_REPOSITORY = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@]+))?(/(?P<file>[^/]+))?/?"
)


@dataclass(frozen=True)
class HubLocation:
    """A repository of models on the hub.

    Attributes:
        repository: `org/name`.
        revision: Branch, tag or commit; None for the default branch.
        file: One file of it, or None for all.
    """

    repository: str
    revision: str | None = None
    file: str | None = None

    @property
    def name(self) -> str:
        """The repository's name without its owner."""
        return self.repository.partition("/")[2]

    def __str__(self) -> str:
        """The location as it is typed."""
        revision = f"@{self.revision}".replace("/", "%2F") if self.revision else ""
        return f"{HUB}{self.repository}{revision}" + (f"/{self.file}" if self.file else "")


def is_hub(location: str | os.PathLike[str]) -> bool:
    """Return whether the location names a repository on the hub."""
    return os.fspath(location).startswith(HUB)


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return whether the location is behind a protocol, the hub's included, and no path of this host."""
    text = os.fspath(location)
    return "://" in text and not text.startswith(_FILE)


def local_path(location: str | os.PathLike[str]) -> Path:
    """The path that a location which is no URL means; there may be nothing of that name.

    Raises:
        UsageError: It is empty, or no file system takes it.
    """
    text = os.fspath(location).removeprefix(_FILE)
    if not text:
        # As of an unset variable; it would be this very folder.
        raise UsageError("an empty path", expected="a path or URL", hint="this folder is .")
    try:
        os.lstat(text)
    except ValueError:  # of bytes that end a path, and of halves of surrogate pairs
        raise UsageError(
            "a path that no file system takes",
            expected="no NUL, and characters that the file system can store",
            found=repr(text),
        ) from None
    except OSError as error:
        if error.errno in _IMPOSSIBLE:
            raise UsageError(
                "a path that no file system takes", expected=error.strerror, found=text
            ) from None
    return Path(text)


def parse_hub(location: str | os.PathLike[str]) -> HubLocation:
    """Read `hf://org/name[@revision][/file]`; a slash in a revision is written as `%2F`.

    Raises:
        UsageError: It has another form.
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
