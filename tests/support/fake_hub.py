"""A small Hugging Face Hub in this process for the real client: listings, downloads, commits.

It is an HTTP server whose address goes into HF_ENDPOINT. Small files are committed inline and
`.bin` files by the Git LFS protocol, as on the real hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from support.range_server import running


@dataclass
class Repository:
    """The files of each revision of a repository; `main` always exists.

    Attributes:
        revisions: For each revision, the content of each file by name.
        gated: Whether downloads are refused although listing works.
        private: Whether it was created as private.
        messages: Messages of the commits, in order.
    """

    revisions: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    gated: bool = False
    private: bool = False
    messages: list[str] = field(default_factory=list)

    def commit(self, revision: str) -> str | None:
        """Return the 40-digit commit hash that a revision resolves to."""
        for name, files in self.revisions.items():
            digest = hashlib.sha1(name.encode())
            for file, content in sorted(files.items()):
                digest.update(file.encode() + content)
            if revision in (name, digest.hexdigest()):
                return digest.hexdigest()
        return None

    def files(self, revision: str) -> dict[str, bytes]:
        """Return the files of a branch or a commit."""
        return next(
            files for name, files in self.revisions.items()
            if self.commit(name) == self.commit(revision)
        )  # fmt: skip


class Hub:
    """The state of the server.

    Attributes:
        url: Address of the server.
        repositories: Repositories by `org/name`.
        requests: Method and path of each request, in order.
    """

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []

    def add(self, name: str, files: Mapping[str, bytes], revision: str = "main") -> Repository:
        """Add files to a revision of a repository, which is created if it is new."""
        repository = self.repositories.setdefault(name, Repository())
        repository.revisions[revision] = dict(files)
        return repository

    def downloads(self) -> list[str]:
        """Return the sorted names of the files that were downloaded."""
        wanted = [
            request
            for request in self.requests
            if request.startswith("GET") and "/resolve/" in request
        ]
        return sorted(path.rsplit("/", 1)[-1] for path in wanted)


@contextmanager
def fake_hub() -> Iterator[Hub]:
    """Run a hub for the duration of the context."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with running(handler) as hub.url:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:], body)
        elif parts == ["api", "repos", "create"]:
            self._create(json.loads(body))
        elif parts == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": []})
        elif parts[0] == "objects":
            self.hub.objects[parts[1]] = body
            self._json({})
        elif parts[2:4] == ["info", "lfs"]:
            self._batch(json.loads(body))
        elif parts[2:3] == ["resolve"]:
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._missing("RepoNotFound")

    def _api(self, name: str, rest: list[str], body: bytes) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._missing("RepoNotFound")
            return
        action, revision = rest[0] if rest else "revision", rest[1] if len(rest) > 1 else "main"
        if repository.commit(revision) is None:
            self._missing("RevisionNotFound")
        elif action == "revision":
            self._json(self._info(name, repository, revision))
        elif action == "tree":
            self._json([
                {"type": "file", "path": file, "size": len(content), "oid": _oid(content)}
                for file, content in repository.files(revision).items()
            ])  # fmt: skip
        elif action == "preupload":
            files = [
                {"path": one["path"], "uploadMode": _mode(one["path"]), "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self._json({"files": files})
        else:
            self._commit(name, repository, body)

    def _info(self, name: str, repository: Repository, revision: str) -> dict[str, Any]:
        siblings = [
            {"rfilename": file, "size": len(content), "blobId": _oid(content)}
            | _large(file, content)
            for file, content in repository.files(revision).items()
        ]
        return {
            "id": name, "_id": "0", "modelId": name, "sha": repository.commit(revision),
            "siblings": siblings, "private": repository.private, "tags": [], "downloads": 0,
        }  # fmt: skip

    def _create(self, wanted: Mapping[str, Any]) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.hub.repositories:
            self._json({"url": f"{self.hub.url}/{name}"}, 409)
            return
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        self.hub.repositories[name] = Repository(private=private)
        self._json({"url": f"{self.hub.url}/{name}", "id": name})

    def _batch(self, wanted: Mapping[str, Any]) -> None:
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.hub.url}/objects/{entry['oid']}"}}}
            for entry in wanted["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _commit(self, name: str, repository: Repository, body: bytes) -> None:
        files = dict(repository.revisions["main"])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                repository.messages.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        repository.revisions["main"] = files
        commit = repository.commit("main")
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit, "hookOutput": "", "success": True})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._missing("RepoNotFound")
        elif repository.gated:
            self._missing("GatedRepo", 403)
        elif repository.commit(revision) is None:
            self._missing("RevisionNotFound")
        elif file not in repository.files(revision):
            self._missing("EntryNotFound")
        else:
            content = repository.files(revision)[file]
            self._answer(content, {
                "X-Repo-Commit": str(repository.commit(revision)),
                "ETag": f'"{_oid(content)}"',
            })  # fmt: skip

    def _missing(self, code: str, status: int = 404) -> None:
        self._answer(b"{}", {"X-Error-Code": code, "X-Error-Message": code}, status)

    def _json(self, value: object, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self._answer(content, {"Content-Type": "application/json"}, status)

    def _answer(self, content: bytes, headers: Mapping[str, str], status: int = 200) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".bin") else "regular"


def _large(name: str, content: bytes) -> dict[str, Any]:
    """Return what the listing says of a file that is stored by Git LFS."""
    if _mode(name) != "lfs":
        return {}
    digest = hashlib.sha256(content).hexdigest()
    return {"lfs": {"size": len(content), "sha256": digest, "pointerSize": 134}}
