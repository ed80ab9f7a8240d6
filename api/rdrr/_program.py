"""Programs of packages: `export_program` writes one as a file, and `play` runs such a file."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import UsageError
from rdrr_format.misuse import explained
from rdrr_format.stores import replace_file, store_errors

from rdrr._backends import load_checked, resolve_hints
from rdrr._explanation import planned_for

if TYPE_CHECKING:
    from rdrr_runtime.program.player import Player
    from rdrr_runtime.program.schema import Program

    from rdrr._load_options import KvDtype, VerifyMode


@dataclass(frozen=True)
class ExportedProgram:
    """The result of `export_program`.

    Attributes:
        program: The program.
        size: Bytes of the file.
        compressed: Bytes of the file as a server sends it, compressed by gzip.
        new_shaders: Shaders that were written to the pool; None if they are in the file.
    """

    program: Program
    size: int
    compressed: int
    new_shaders: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the facts about the program as JSON values."""
        program = self.program
        return {
            "model": program.model,
            "contexts": program.contexts.model_dump(),
            "kv_dtype": program.kv_dtype,
            "needs": program.needs.model_dump(mode="json"),
            "passes": [listed.name for listed in program.passes],
            "kernels": len(program.kernels),
            "shaders": len(program.shaders),
            "new_shaders": self.new_shaders,
            "buffers": len(program.buffers),
            "size": self.size,
            "compressed": self.compressed,
        }


@explained
def export_program(
    path: str | Path,
    out: str | Path,
    *,
    adapter: str | None = None,
    capabilities: str | Path | None = None,
    kernel_hints: Mapping[str, str] | None = None,
    kv_dtype: KvDtype = "f16",
    max_context: int | None = None,
    shaders: str | Path | None = None,
    scores: bool = False,
    overwrite: bool = False,
    follow_links: bool = False,
) -> ExportedProgram:
    """Write the program of a package: all that runs it on a kind of device, without weights.

    No weights are read, so a manifest without its shards is enough, and no GPU is needed if a file
    describes the device. docs/PROGRAM.md describes the file.

    Args:
        path: Folder or URL of the package, or a bare manifest.
        out: The file to write.
        adapter: Part of the name of the adapter to plan for; the best adapter by default.
        capabilities: A file that describes the device to plan for, in place of an adapter.
        kernel_hints: Kernel hints, which override those of the configuration and the manifest.
        kv_dtype: Data type of the key-value cache.
        max_context: Largest context of the program; the context length of the model by default.
        shaders: Folder for the shaders, each in a file named by its hash, so that programs share
            them; by default they are in the program's file.
        scores: Whether the program has a pass for the logits behind each token of a text.
        overwrite: Whether to replace an existing file.
        follow_links: Whether to follow links that lead out of the package's folder.

    Raises:
        StoreError: There is no package at `path`, or the file cannot be written.
        ManifestError: The manifest has faults.
        FormatError: The model cannot run from a program, or one program cannot serve the contexts.
        DeviceError: There is no such adapter.
        UsageError: An option is wrong.
    """
    from rdrr_manifests.package import open_package
    from rdrr_runtime.program.export import make_program
    from rdrr_runtime.program.files import program_bytes
    from rdrr_runtime.program.pool import write_shaders

    if adapter is not None and capabilities is not None:
        raise UsageError("`adapter` and `capabilities` exclude each other", found=adapter)
    if Path(out).exists() and not overwrite:
        raise UsageError("the file exists already", where=out, hint="replace it with `overwrite`")
    package = open_package(path, follow_links=follow_links, bare=True)
    longest = package.manifest.architecture.max_seq_len
    if max_context is not None and not 0 < max_context <= longest:
        raise UsageError(
            "`max_context` is out of range",
            expected=f"1 to {longest}, the context length of the model",
            found=max_context,
        )
    described = adapter if capabilities is None else Path(capabilities)
    program = make_program(
        package,
        planned_for(described)[1],
        resolve_hints(package, kernel_hints or {}),
        most_context=max_context,
        kv_dtype=kv_dtype,
        scores=scores,
    )
    new = None if shaders is None else write_shaders(Path(shaders), program.shaders)
    content = program_bytes(program, apart=shaders is not None)
    with store_errors(Path(out)):
        replace_file(Path(out), content)
    return ExportedProgram(program, len(content), len(gzip.compress(content, 9, mtime=0)), new)


@explained
def play(
    program: str | Path | Program,
    path: str | Path,
    *,
    context: int | None = None,
    shaders: str | Path | None = None,
    adapter: str | None = None,
    verify: VerifyMode = "cached",
    follow_links: bool = False,
) -> Player:
    """Load a package with the program of a file instead of compiling it.

    The player takes and returns token ids: `player.generate(ids, max_tokens=64)` yields ids. It
    does not believe a file that kernels check their indices themselves.

    Args:
        program: The file, or a program that was read before.
        path: Folder or URL of the package that it was made for.
        context: Slots of the key-value cache; the smallest context of the program by default.
        shaders: Folder with the shaders, if the file was written without them.
        adapter: Part of the name of the adapter to use; the best adapter by default.
        verify: Which shards to hash while they are loaded, see `LoadOptions`.
        follow_links: Whether to follow links that lead out of the package's folder.

    Raises:
        StoreError: The file or the package cannot be read.
        FormatError: The file is not a program, or not that of the package.
        ManifestError: The manifest has faults.
        ShardError: Bytes are missing, or the hash of a shard differs from the one in the manifest.
        DeviceError: There is no adapter, it lacks what the program needs, or too little memory.
        UsageError: The program does not serve the context.
    """
    from rdrr_device.device import open_device
    from rdrr_manifests.package import open_package
    from rdrr_runtime.program.player import Player

    read = _read(Path(program), shaders) if isinstance(program, str | Path) else program
    package = open_package(path, follow_links=follow_links)
    with ExitStack() as undo:
        device = open_device(adapter)
        undo.callback(device.close)
        player, _ = load_checked(
            package,
            verify,
            lambda: Player(read, package, device, context=context, owns_device=True),
        )
        undo.pop_all()
    return player


def _read(path: Path, shaders: str | Path | None) -> Program:
    from rdrr_runtime.program.files import BOUNDS, read_program
    from rdrr_runtime.program.pool import read_shader

    with store_errors(path):
        if path.stat().st_size > BOUNDS.size:
            raise UsageError(
                "the program is too large", expected=f"at most {BOUNDS.size} bytes", where=path
            )
        content = path.read_bytes()
    pool = None if shaders is None else partial(read_shader, Path(shaders))
    return read_program(content, path.name, pool)
