"""Hugging Face checkpoint directories, whatever file format their weights have.

Such a directory has a configuration beside the weights, and either one file of weights or an index
that says which shard holds which tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rdrr_format.bounded_json import JsonBounds
from rdrr_format.errors import SourceError
from rdrr_format.file_names import is_plain_name

from rdrr_converter.checkpoint.files import find_file, read_json_object
from rdrr_converter.checkpoint.source import Source, SourceTensor, with_aliases, without_wrappers

INDEX_BOUNDS = JsonBounds(size=32 << 20, values=1 << 20, depth=8)
"""Limits of an index, enough for some 500,000 tensors."""

ReadFile = Callable[[Path], Mapping[str, SourceTensor]]
"""Function that reads the tensors of one file of weights."""


@dataclass(frozen=True)
class WeightFiles:
    """The names of weight files in one kind of checkpoint, and how to read them.

    Attributes:
        kind: Name of the kind of checkpoint.
        single: Name of the file of an unsharded checkpoint.
        index: Name of the file that says which shard holds which tensor.
        suffixes: Suffixes of files that can be opened on their own.
        read_file: Reads the tensors of one file.
    """

    kind: str
    single: str
    index: str
    suffixes: tuple[str, ...]
    read_file: ReadFile

    def is_directory(self, path: Path) -> bool:
        """Return whether `open_directory` can read a directory."""
        return path.is_dir() and any((path / name).exists() for name in (self.single, self.index))

    def is_file(self, path: Path) -> bool:
        """Return whether `open_file` can read a file."""
        return path.is_file() and path.suffix in self.suffixes

    def open_directory(self, path: Path, *, follow_links: bool = False) -> Source:
        """Open a directory with `config.json` and either the single file or an index of shards.

        Args:
            path: The directory.
            follow_links: Whether small files may be links that lead out of it.

        Raises:
            SourceError: A file is missing or damaged, or no regular file.
            StoreError: A small file is a link that leads out of the directory.
        """
        index = find_file(path, self.index, follow_links=follow_links)
        if index is not None:
            tensors = _read_sharded(index, self.read_file)
        else:
            tensors = self.read_file(path / self.single)
        return _source_beside(path, self.kind, tensors, follow_links=follow_links)

    def open_file(self, path: Path, *, follow_links: bool = False) -> Source:
        """Open one file, with its configuration beside it.

        Args:
            path: The file.
            follow_links: Whether small files beside it may be links that lead out of the directory.

        Raises:
            SourceError: The file is damaged or there is no `config.json` beside it.
            StoreError: A small file is a link that leads out of the directory.
        """
        tensors = self.read_file(path)
        return _source_beside(path.parent, self.kind, tensors, follow_links=follow_links)


def _source_beside(
    path: Path, kind: str, tensors: Mapping[str, SourceTensor], *, follow_links: bool
) -> Source:
    """Return the checkpoint of some tensors and the configuration in the directory `path`.

    Raises:
        SourceError: There is no `config.json`, or it cannot be read.
        StoreError: A file is a link that leads out of the directory.
    """
    config, generation = (
        find_file(path, name, follow_links=follow_links)
        for name in ("config.json", "generation_config.json")
    )
    if config is None:
        raise SourceError(
            "not a checkpoint", where=path, expected="a config.json beside the weights"
        )
    return Source(
        path=path,
        kind=kind,
        config=read_json_object(config),
        tensors=without_wrappers(tensors),
        generation_config={} if generation is None else read_json_object(generation),
        follow_links=follow_links,
    )


def _read_sharded(index: Path, read_file: ReadFile) -> Mapping[str, SourceTensor]:
    """Return the tensors of all shards that an index names.

    Raises:
        SourceError: The index or a shard is missing or damaged.
    """
    stated = read_json_object(index, INDEX_BOUNDS)
    weight_map, metadata = stated.get("weight_map"), stated.get("metadata")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise SourceError("the index has no weight_map", where=index, expected="{tensor: file}")
    tensors: dict[str, SourceTensor] = {}
    for name in sorted(set(weight_map.values())):
        # A path in the index must not lead out of the checkpoint.
        is_inside = is_plain_name(name)
        if not is_inside or find_file(index.parent, name, follow_links=True) is None:
            raise SourceError(
                "a shard is missing", where=index, expected=name, hint="download it again"
            )
        _add(tensors, read_file(index.parent / name), weight_map, index.parent / name)
    lost = sorted(set(weight_map) - set(tensors))
    if lost:
        raise SourceError(
            "a shard lacks a tensor that the index promises",
            where=index.parent / weight_map[lost[0]],
            expected=lost[0],
            found=f"{len(lost)} tensors missing",
        )
    return with_aliases(tensors, metadata if isinstance(metadata, dict) else {})


def _add(
    tensors: dict[str, SourceTensor],
    shard: Mapping[str, SourceTensor],
    weight_map: Mapping[str, str],
    path: Path,
) -> None:
    """Add the tensors of a shard; if an earlier shard has one too, the index decides between them.

    Raises:
        SourceError: A tensor is in two shards, and the index does not mention it.
    """
    for name, tensor in shard.items():
        if name in tensors and name not in weight_map:
            raise SourceError(
                "a tensor that the index does not name is in two shards",
                where=path,
                expected=f"{name} in one file",
                found=f"also in {tensors[name].file}",
            )
        if name not in tensors or weight_map[name] == path.name:
            tensors[name] = tensor
