"""`web`: write beside a package, or apart from it, what runs it in a browser."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rdrr_format.errors import UsageError
from rdrr_format.locations import is_hub, is_url, local_path, parse_hub, remote_url
from rdrr_format.misuse import explained
from rdrr_format.stores import replace_file, store_errors

from rdrr._backends import resolve_hints
from rdrr._web_refusals import check_loads, check_serves, refuse_package
from rdrr._web_shards import shard_facts

if TYPE_CHECKING:
    from rdrr_device.capabilities import Capabilities
    from rdrr_manifests.locate import Location
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.hints import Policy
    from rdrr_runtime.program.schema import Program

    from rdrr._load_options import KvDtype

FORMAT, VERSION = "rdrr-web", 1
INDEX, PROGRAMS = "index.json", "programs"

TEXTS = {
    "config": "tokenizer_config.json",
    "special": "special_tokens_map.json",
    "template": "chat_template.jinja",
}
"""Files of the text beside tokenizer.json, by what the index calls them."""


@dataclass(frozen=True)
class WebProgram:
    """A program that `web` wrote.

    Attributes:
        file: Its file, relative to the index.
        targets: Names of the kinds of devices that it was planned for.
        needs: WebGPU and WGSL features that it needs.
        size: Bytes of the file.
        compressed: Bytes of the file as a server sends it, compressed by gzip.
    """

    file: str
    targets: tuple[str, ...]
    needs: tuple[str, ...]
    size: int
    compressed: int


@dataclass(frozen=True)
class WebFiles:
    """The result of `web`.

    Attributes:
        directory: The folder that was written.
        package: URL of the package, relative to that folder where it is a path.
        programs: The programs, the best first.
        towers: The programs of the vision tower, likewise; none if the model sees no images.
        page: Names and bytes, compressed by gzip, of the files of the page.
    """

    directory: Path
    package: str
    programs: tuple[WebProgram, ...]
    towers: tuple[WebProgram, ...]
    page: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "directory": str(self.directory),
            "package": self.package,
            "programs": [asdict(program) for program in self.programs],
            "towers": [asdict(program) for program in self.towers],
            "page": dict(self.page),
        }


@explained
def web(
    path: str | Path,
    directory: str | Path | None = None,
    *,
    page: bool = False,
    targets: Sequence[str | Path] = (),
    kernel_hints: Mapping[str, str] | None = None,
    kv_dtype: KvDtype = "f16",
    max_context: int | None = None,
    follow_links: bool = False,
) -> WebFiles:
    """Write the programs that run a package in browsers, and an index of them.

    No weights are read, and nothing of the package changes. What an earlier call wrote is replaced.

    Args:
        path: Folder or URL of the package, or `hf://org/name`, of which only small files are read.
        directory: Folder to write; `web` in the folder of the package by default.
        page: Whether to write a page too, which any static host serves.
        targets: Files that describe devices to plan for, the best first, in place of the usual set.
        kernel_hints: Kernel hints, which override those of the configuration and the manifest.
        kv_dtype: Data type of the key-value cache.
        max_context: Largest context; the context length of the model by default.
        follow_links: Whether to follow links that lead out of the package's folder.

    Raises:
        StoreError: There is no package at `path`, or a file cannot be written.
        ManifestError: The manifest has faults.
        FormatError: Browsers cannot run the package.
        UsageError: An option is wrong, or `directory` holds an index that another program wrote.
    """
    from rdrr_manifests.locate import locate
    from rdrr_manifests.package import open_package
    from rdrr_runtime.program.towers import make_tower_program

    if directory is None and is_url(path):
        message = "a package that is not on this machine needs a `directory`"
        raise UsageError(message, found=path)
    package = open_package(path, follow_links=follow_links, bare=True)
    refuse_package(package)
    location = locate(path, follow_links=follow_links)
    folder = _directory(path, location, directory)
    content = location.read_manifest()
    policy, described = resolve_hints(package, kernel_hints or {}), _described(targets)
    longest = _longest_context(package, max_context)
    planned = _planned(
        described,
        lambda device: _program(package, device, policy, longest=longest, kv_dtype=kv_dtype),
    )
    towers = _planned(
        described,
        lambda device: make_tower_program(package, device, policy, most_tokens=longest),
    )
    index: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": package.manifest.model_id,
        "package": _package_url(path, location, folder),
        "manifest": sha256(content).hexdigest(),
        **shard_facts(package, [program for _, program, _ in planned]),
        "text": _texts(package),
        "programs": [_entry(program, content) for _, program, content in planned],
        "towers": [_entry(program, content) for _, program, content in towers],
    }
    contents = [content for _, _, content in (*planned, *towers)]
    _write(folder, index, {f"{PROGRAMS}/{_name(content)}": content for content in contents})
    return WebFiles(
        folder,
        index["package"],
        tuple(_written(*program) for program in planned),
        tuple(_written(*tower) for tower in towers),
        _write_page(folder) if page else {},
    )


def page_files() -> dict[str, bytes]:
    """Return the files of the page and of the runtime that it loads, by name."""
    folder = files("rdrr") / "browser"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


_Planned = tuple[tuple[str, ...], "Program", bytes]
"""Names of the targets of a program, the program, and its file."""


def _described(paths: Sequence[str | Path]) -> dict[str, Capabilities]:
    from rdrr._explanation import planned_for
    from rdrr._web_targets import TARGETS

    if not paths:
        return dict(TARGETS)
    return {Path(path).name: planned_for(Path(path))[1] for path in paths}


def _longest_context(package: Package, most_context: int | None) -> int:
    """Return the largest context that programs serve.

    Raises:
        UsageError: The model has no such context.
    """
    longest = package.manifest.architecture.max_seq_len
    if most_context is not None and not 0 < most_context <= longest:
        raise UsageError(
            "`max_context` is out of range",
            expected=f"1 to {longest}, the context length of the model",
            found=most_context,
        )
    return most_context or longest


def _planned(
    targets: Mapping[str, Capabilities], plan: Callable[[Capabilities], Program | None]
) -> list[_Planned]:
    """Return the programs for some targets; those that come out equal once."""
    from rdrr_runtime.program.files import program_bytes

    planned = dict[bytes, _Planned]()
    for name, capabilities in targets.items():
        program = plan(capabilities)
        if program is not None:
            check_loads(program)
            content = program_bytes(program)
            names = planned[content][0] if content in planned else ()
            planned[content] = ((*names, name), program, content)
    return list(planned.values())


def _program(
    package: Package,
    capabilities: Capabilities,
    policy: Policy,
    *,
    longest: int,
    kv_dtype: KvDtype,
) -> Program:
    from rdrr_runtime.program.export import make_program

    program = make_program(package, capabilities, policy, most_context=longest, kv_dtype=kv_dtype)
    check_serves(package, program)
    return program


def _entry(program: Program, content: bytes) -> dict[str, Any]:
    """Return what the index says of a program."""
    from rdrr_runtime.program.files import at_context

    ends = program.contexts.least, program.contexts.most
    sizes = [_sizes(at_context(program, context)) for context in ends]
    return {
        "file": f"{PROGRAMS}/{_name(content)}",
        "sha256": sha256(content).hexdigest(),
        "size": len(content),
        "needs": program.needs.model_dump(mode="json"),
        "contexts": program.contexts.model_dump(mode="json"),
        **{key: [least, most] for key, least, most in zip(_SIZES, *sizes, strict=True)},
    }


_SIZES = ("memory", "buffer", "binding")


def _sizes(program: Program) -> tuple[int, int, int]:
    """Return the bytes of all buffers, of the largest one, and of the largest binding."""
    from rdrr_runtime.program.checks import number

    buffers = [int(number(buffer.size)) for buffer in program.buffers]
    return sum(buffers), max(buffers), max(int(number(part.size)) for part in program.ranges)


def _written(names: tuple[str, ...], program: Program, content: bytes) -> WebProgram:
    return WebProgram(
        f"{PROGRAMS}/{_name(content)}",
        names,
        (*program.needs.features, *program.needs.language),
        len(content),
        len(gzip.compress(content, 9, mtime=0)),
    )


def _name(content: bytes) -> str:
    return f"{sha256(content).hexdigest()[:16]}.json"


def _directory(path: str | Path, location: Location, directory: str | Path | None) -> Path:
    """Return the folder to write, which holds no index of another program."""
    if directory is None:
        if is_url(path):
            raise UsageError(
                "a package that is not on this machine needs a `directory`", found=path
            )
        folder = _folder(path, location) / "web"
    else:
        folder = local_path(directory)
    index = folder / INDEX
    if index.exists() and not _is_ours(index):
        raise UsageError(
            "the folder has an index that another program wrote",
            where=index,
            hint="name another folder",
        )
    return folder


def _is_ours(index: Path) -> bool:
    with store_errors(index):
        content = index.read_bytes()
    try:
        return bool(json.loads(content)["format"] == FORMAT)
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _folder(path: str | Path, location: Location) -> Path:
    local = local_path(path)
    return local.parent if location.is_bare else local


def _package_url(path: str | Path, location: Location, folder: Path) -> str:
    """Return the URL of the folder with the manifest, relative to the index where it is local."""
    if is_hub(path):
        from huggingface_hub import hf_hub_url

        named = parse_hub(path)
        url: str = hf_hub_url(named.repository, location.name, revision=named.revision)
        return url.removesuffix(location.name)
    if is_url(path):
        return remote_url(path).removesuffix(location.name if location.is_bare else "") + "/"
    relative = os.path.relpath(_folder(path, location).resolve(), folder.resolve())
    return quote(os.fsencode(Path(relative).as_posix())) + "/"


def _texts(package: Package) -> dict[str, str]:
    """Return the files of the text that the package has, by what they are."""
    tokenizer = package.manifest.tokenizer
    named = {"tokenizer": (tokenizer and tokenizer.file) or "tokenizer.json", **TEXTS}
    return {key: name for key, name in named.items() if package.store.exists(name)}


def _write(folder: Path, index: Mapping[str, Any], programs: Mapping[str, bytes]) -> None:
    """Write the programs, then the index, and remove programs that no index names any more."""
    with store_errors(folder):
        (folder / PROGRAMS).mkdir(parents=True, exist_ok=True)
    for name, content in programs.items():
        with store_errors(folder / name):
            replace_file(folder / name, content)
    with store_errors(folder / INDEX):
        replace_file(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())
        for old in (folder / PROGRAMS).glob("*.json"):
            if f"{PROGRAMS}/{old.name}" not in programs:
                old.unlink()


def _write_page(folder: Path) -> dict[str, int]:
    sizes = {}
    for name, content in page_files().items():
        with store_errors(folder / name):
            replace_file(folder / name, content)
        sizes[name] = len(gzip.compress(content, 9, mtime=0))
    return sizes
