"""Compile kernels with Tint, the WGSL compiler of Dawn and Chromium, in addition to naga.

`.ci/dawn` sets up `.dawn`: Dawn for Node and a driver that Dawn accepts. A Node process
(`tests/dawn/compile.mjs`) compiles a whole list of kernels; a long list is shared by one process
for each core.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from rdrr_device.kernels import Kernel
from rdrr_device.pipelines import Pipelines
from rdrr_device.shaders import WgslCompiler, for_compiler

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".dawn"
NOT_SET_UP = "Dawn is not set up: run .ci/dawn"
COMPILER = ROOT / "tests" / "dawn" / "compile.mjs"
FEWEST = 200
"""Fewest kernels of a Node process, which takes about a second to start."""


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a list of kernels with Tint.

    Attributes:
        adapter: Vendor and driver of the adapter that Dawn compiled for.
        count: Number of kernels that were compiled.
        refused: Label and messages of each kernel that Tint refused.
    """

    adapter: str
    count: int
    refused: tuple[tuple[str, tuple[str, ...]], ...]


def is_set_up() -> bool:
    """Return whether `.ci/dawn` has finished here."""
    return (FOLDER / "installed").is_file()


def request_of(kernel: Kernel) -> dict[str, Any]:
    """Return a kernel as the JSON request of `compile.mjs`."""
    return {
        "label": kernel.label,
        "source": for_compiler(kernel.source, WgslCompiler.TINT),
        "entry": kernel.entry,
        "constants": dict(kernel.overrides),
        "bindings": [binding.access.value for binding in kernel.bindings],
    }


def compile_requests(requests: Iterable[dict[str, Any]]) -> Compiled:
    """Compile kernels, given as the requests of `request_of`, with Tint.

    Raises:
        RuntimeError: Dawn does not run on this machine.
    """
    wanted = list(requests)
    size = max(FEWEST, -(-len(wanted) // (os.cpu_count() or 1)))
    shares = [wanted[at : at + size] for at in range(0, len(wanted), size)] or [[]]
    with ThreadPoolExecutor(len(shares)) as pool:
        results = list(pool.map(_compile, shares))
    refused = tuple(refusal for each in results for refusal in each.refused)
    return Compiled(results[0].adapter, sum(result.count for result in results), refused)


def _compile(requests: Sequence[dict[str, Any]]) -> Compiled:
    """Compile kernels in one Node process."""
    with tempfile.TemporaryDirectory() as place:
        shaders = Path(place, "shaders.json")
        shaders.write_text(json.dumps(requests), encoding="utf-8")
        done = subprocess.run(
            ["node", str(COMPILER), str(FOLDER), str(shaders)],
            capture_output=True,
            text=True,
            env=dawn_environment(),
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"Dawn in {FOLDER} failed: {done.stderr.strip()}")
    document = json.loads(done.stdout)
    refused = tuple((entry["label"], tuple(entry["messages"])) for entry in document["refused"])
    return Compiled(document["adapter"], document["compiled"], refused)


def dawn_environment() -> dict[str, str]:
    """Return this process's environment with the driver of `.dawn` instead of the system's."""
    libraries = str(FOLDER / "lib")
    before = os.environ.get("LD_LIBRARY_PATH")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{libraries}:{before}" if before else libraries,
        "VK_DRIVER_FILES": str(FOLDER / "driver.json"),
    }


COHERENT = "@coherent"
"""An attribute of naga alone. Dawn compiles modules of passes in one dispatch, which have it, with
an extension that only some of its devices allow; so they are not shown to Tint here."""


@contextmanager
def recording(folder: Path) -> Iterator[None]:
    """Write every kernel that a pipeline is created from into `folder`, each content once.

    Tint gets the kernel as hardware compiles it. `pipeline` is the digest of what the device here
    compiles, which several kernels may share (`rdrr_device.shared_shaders`). Kernels with
    `COHERENT` are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make = Pipelines.get

    @wraps(make)
    def make_and_record(self: Pipelines, kernel: Kernel) -> tuple[Any, Any]:
        pipeline = make(self, kernel)
        if COHERENT not in kernel.source:
            compiled = request_of(self._shared(kernel).kernel)
            _write(folder, request_of(kernel) | {"pipeline": _digest(compiled)})
        return pipeline

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipelines, "get", make_and_record)
        yield


def _write(folder: Path, request: dict[str, Any]) -> None:
    """Write a request atomically, because several workers may write the same file at once."""
    text = json.dumps(request, sort_keys=True)
    target = folder / f"{_digest(request)}.json"
    if not target.exists():
        temporary = target.with_suffix(f".{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)


def _digest(request: dict[str, Any]) -> str:
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Return the kernels that test sessions recorded into `folder`, sorted by label."""
    files = sorted(folder.glob("*.json"))
    entries = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return sorted(entries, key=lambda entry: entry["label"])
