"""Push a package to the Hugging Face Hub, in one commit, so that it is never there in part."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import ManifestError, StoreError, UsageError
from rdrr_format.html_tables import rows_table
from rdrr_format.hub import hub_errors
from rdrr_format.locations import HUB, HubLocation, is_hub, is_url, local_path, parse_hub
from rdrr_format.misuse import explained
from rdrr_format.printing import printable
from rdrr_format.shards import is_shard_name
from rdrr_format.stores import LocalStore, store_errors
from rdrr_manifests.models.conversion_report import REPORT_NAME, parse_report

from rdrr._model_card import CARD_NAME, model_card
from rdrr._texts import read_text

if TYPE_CHECKING:
    from rdrr_manifests.package import Package


@dataclass(frozen=True, repr=False)
class Pushed:
    """The result of a push or of its dry run.

    Attributes:
        location: The repository.
        files: Size in bytes of each file by name, the model card included.
        card: The text of the model card.
        message: The commit message.
        url: The URL of the commit; None in a dry run.
    """

    location: str
    files: Mapping[str, int]
    card: str
    message: str
    url: str | None

    def __repr__(self) -> str:
        state = "would be uploaded" if self.url is None else f"uploaded in {self.url}"
        return printable(f"<Pushed {self.location}: {len(self.files)} files, {state}>")

    def _repr_html_(self) -> str:
        """Return a table of the files for notebooks."""
        rows = [(name, f"{size:,}") for name, size in self.files.items()]
        return rows_table(repr(self), ("file", "bytes"), rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "location": self.location,
            "files": dict(self.files),
            "card": self.card,
            "message": self.message,
            "url": self.url,
        }


@explained
def push(
    path: str | os.PathLike[str],
    location: str,
    *,
    private: bool = False,
    base_model: str | None = None,
    message: str | None = None,
    dry_run: bool = False,
    follow_links: bool = False,
) -> Pushed:
    """Validate every byte of a package, then push it to the hub.

    Args:
        path: Folder of the package. A `README.md` in it becomes the model card; without one a card
            is written.
        location: `org/name` or `hf://org/name`, which is created if it does not exist, or
            `org/name@branch`.
        private: Create a private repository; a public one that exists is refused.
        base_model: The repository that the model was converted from, for the card.
        message: The commit message.
        dry_run: Do everything except for the requests to the hub.
        follow_links: Also push files outside the folder that links lead to.

    Raises:
        UsageError: The location is not a repository, the package is not in a folder, or its
            `README.md` is not text.
        ManifestError: The package has errors.
        StoreError: The hub refuses or cannot be reached, or a link leads out of the folder.
    """
    target, folder = _checked(path, location, base_model)
    contents = _contents(LocalStore(folder, follow_links=follow_links))
    package = _sound(folder, follow_links=follow_links)
    card = contents.pop(CARD_NAME, None)
    text = read_text(card) if card is not None else _card(package, target, contents, base_model)
    sizes = {name: file.stat().st_size for name, file in contents.items()}
    pushed = Pushed(
        location=str(target),
        files=dict(sorted({CARD_NAME: len(text.encode()), **sizes}.items())),
        card=text,
        message=message or f"Add {package.manifest.model_id} as an RDRR package",
        url=None,
    )
    if dry_run:
        return pushed
    return replace(pushed, url=_commit(target, contents, pushed, private=private))


def _checked(
    path: str | os.PathLike[str], location: str, base_model: str | None
) -> tuple[HubLocation, Path]:
    if not is_url(location) and location.count("/") == 1:
        location = HUB + location
    if not is_hub(location):
        raise UsageError(
            "the location is not a repository of the hub",
            expected="org/name[@branch]",
            found=location,
        )
    target = parse_hub(location)
    if target.file is not None:
        raise UsageError(
            "the location names a file, and a package takes a whole repository", found=location
        )
    if base_model is not None and (not re.fullmatch(r"[\w.-]+/[\w.-]+", base_model)):
        raise UsageError(
            "`base_model` is not the name of a repository", expected="org/name", found=base_model
        )
    folder = local_path(path)
    with store_errors(folder):
        is_file = folder.is_file()
    if is_url(path) or is_file:
        raise UsageError("only a package in a folder can be pushed", found=os.fspath(path))
    return target, folder


def _sound(folder: Path, *, follow_links: bool) -> Package:
    """Return the package after a deep validation.

    Raises:
        ManifestError: The package has errors.
    """
    from rdrr_manifests.package import open_package, validate

    report = validate(folder, deep=True, follow_links=follow_links)
    if not report.ok():
        raise ManifestError(
            "the package is not valid, so it is not pushed",
            faults=report.errors,
            where=folder,
            found=report.errors[0].line(),
            hint="validate it with `deep` to list all faults",
        )
    return open_package(folder, follow_links=follow_links)


def _contents(store: LocalStore) -> dict[str, Path]:
    """Return the paths of the files of a folder by name, without hidden files.

    Raises:
        StoreError: A file is a link that leads out of the folder, or its name is not allowed.
    """
    names = [name for name in store.list() if not name.startswith(".")]
    return {name: store.readable(name) for name in names}


def _card(
    package: Package, target: HubLocation, contents: Mapping[str, Path], base_model: str | None
) -> str:
    file = contents.get(REPORT_NAME)
    report = None if file is None else parse_report(file.read_bytes(), file)
    return model_card(package.manifest, target, base_model=base_model, report=report)


def _commit(
    target: HubLocation, contents: Mapping[str, Path], pushed: Pushed, *, private: bool
) -> str:
    """Create the repository if needed, commit all files at once, and return the commit's URL."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with hub_errors(target):
        api.create_repo(target.repository, private=private or None, exist_ok=True)
        there = api.model_info(target.repository, revision=target.revision)
        if private and not there.private:
            raise StoreError(
                "the repository exists already and is public",
                where=target,
                hint="make it private on its page on the hub, or omit `private`",
            )
        names = {file.rfilename for file in there.siblings or ()}
        stale = [name for name in names if is_shard_name(name) and name not in contents]
        commit = api.create_commit(
            target.repository,
            [
                CommitOperationAdd(CARD_NAME, pushed.card.encode()),
                *(CommitOperationAdd(name, str(file)) for name, file in contents.items()),
                *(CommitOperationDelete(name) for name in sorted(stale)),
            ],
            commit_message=pushed.message,
            revision=target.revision,
        )
    return str(commit.commit_url)
