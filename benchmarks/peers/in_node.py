"""A driver that runs packages on Dawn in Node, by DOPPLER or by the browser runtime, to time them.

`pack` puts everything that it needs into one archive: Node, Dawn for Node and DOPPLER. So it also
runs on machines without Node and without internet.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DOPPLER = Path(__file__).with_name("doppler.mjs")
BROWSER_RUNTIME = Path(__file__).with_name("browser_runtime.mjs")
MODULES = (
    "webgpu/index.js",
    "webgpu/package.json",
    "webgpu/dist/linux-x64",
    "debug",
    "ms",
    "doppler-gpu/package.json",
    "doppler-gpu/src",
)
"""What of node_modules is needed to run."""

PREFIX = "RESULT "


class NodeError(Exception):
    """A runtime in Node cannot be started, or fails."""


def pack(dawn: Path, archive: Path) -> None:
    """Write an archive with Node, Dawn and DOPPLER.

    Args:
        dawn: The folder that `.ci/dawn` has set up.
        archive: The file to write, a tar compressed with xz.

    Raises:
        NodeError: Something of it is not installed.
    """
    node = shutil.which("node")
    modules = dawn / "node_modules"
    missing = [module for module in MODULES if not (modules / module).exists()]
    if node is None or missing:
        raise NodeError(f"run .ci/dawn first: {missing or 'node'} is missing")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(Path(node).resolve(), "bin/node")
        for module in MODULES:
            tar.add(modules / module, f"node_modules/{module}")


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the folder with Node and the modules, of a folder or an archive that `pack` wrote.

    Raises:
        NodeError: There is no such folder or archive.
    """
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise NodeError(f"{path} does not exist; `--pack {path}` writes it")
    with TemporaryDirectory(prefix="doppler-") as scratch:
        with tarfile.open(path) as archive:
            archive.extractall(scratch, filter="data")
        yield Path(scratch)


@dataclass(frozen=True)
class Generation:
    """One measured generation.

    Attributes:
        ids: The new token ids.
        seconds: Seconds from the start to the last of them.
    """

    ids: tuple[int, ...]
    seconds: float


class InNode:
    """A package that a runtime has loaded in Node, in a process of its own.

    Args:
        program: The runtime: `DOPPLER` or `BROWSER_RUNTIME`.
        folder: The folder that `unpacked` yields, or that `.ci/dawn` has set up.
        package: The package.

    Raises:
        NodeError: The runtime does not load the package; the message is its own.
    """

    def __init__(self, program: Path, folder: Path, package: Path) -> None:
        bundled = folder / "bin" / "node"
        node = str(bundled) if bundled.is_file() else "node"
        self._process = subprocess.Popen(
            [node, str(program), str(folder), str(package)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._said: list[str] = []
        loaded = self._answer()
        self.adapter = str(loaded["adapter"])
        self.load_seconds = float(loaded["seconds"])

    def generate(self, prompt: Sequence[int], tokens: int) -> Generation:
        """Generate greedily and return the ids and the seconds.

        Raises:
            NodeError: The runtime fails; the message is its own.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": list(prompt), "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer.get("error") is not None:
            raise NodeError(answer["error"])
        return Generation(tuple(answer["ids"]), answer["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        """Return the next answer; what is printed before it is kept for messages."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(PREFIX):
                answer: dict[str, Any] = json.loads(line.removeprefix(PREFIX))
                return answer
            self._said = [*self._said, line.rstrip()][-12:]
        raise NodeError(f"the runtime in Node ended with code {self._process.wait()}: {self._said}")
