"""A package that was opened: its manifest, its graph, and its tensors, read when asked for.

Opening checks the structure and the presence of the files. It does not hash them, which
`rdrr_manifests.loading` does while they are loaded, nor decode them, which `validate(deep=True)`
does. Writing packages is the converter's work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType

import numpy as np
import numpy.typing as npt
from rdrr_format.bounded_tokenizer import JSON_BOUNDS
from rdrr_format.encoding import decode_tensor
from rdrr_format.errors import ManifestError
from rdrr_format.html_tables import facts_table
from rdrr_format.hub import fetch_files
from rdrr_format.shard_reader import ShardReader
from rdrr_format.stores import LocalStore, Store, read_bounded

from rdrr_manifests.faults import Fault, ValidationReport, of_severity, shown
from rdrr_manifests.graph import Graph
from rdrr_manifests.models import Manifest, Tensor
from rdrr_manifests.rules.files import FILES
from rdrr_manifests.validation import Opened, open_manifest, validate

__all__ = ["Package", "ValidationReport", "open_package", "validate"]

_LISTED = 3


class Package:
    """An opened package; made by `open_package`.

    Args:
        opened: The manifest as read and examined.
        warnings: What the rules warn of.

    Attributes:
        manifest: The manifest, in the current generation's words whatever it was written in.
        store: Where the files are.
        where: The path or URL it was opened with.
        generation: Generation it was written in.
        notes: Older spellings that were translated.
        warnings: What the rules warn of.
    """

    def __init__(self, opened: Opened, warnings: tuple[Fault, ...]) -> None:
        manifest = opened.examination.manifest
        assert manifest is not None
        self.manifest: Manifest = manifest
        self.store: Store = opened.location.store
        self.where = opened.location.where
        self.generation = opened.examination.normalized.generation
        self.notes = opened.examination.normalized.notes
        self.warnings = warnings
        self._examination = opened.examination
        self._reader = ShardReader(self.store, manifest.shards, manifest.hash_algorithm)

    @cached_property
    def graph(self) -> Graph:
        """The semantic graph.

        Raises:
            ManifestError: The package is valid but needs ops that this version lacks.
        """
        graph = self._examination.graph
        if isinstance(graph, Graph):
            return graph
        raise ManifestError(
            graph.message,
            where=f"{self.where}: {graph.where}" if graph.where else self.where,
            expected=graph.expected,
            found=graph.found,
        )

    @property
    def is_runnable(self) -> bool:
        """Whether this version has an op for everything the model does."""
        return isinstance(self._examination.graph, Graph)

    def fetch(self) -> None:
        """Have all shards at hand, for who is going to read them all.

        Raises:
            StoreError: One cannot be downloaded.
        """
        fetch_files(self.store, [shard.filename for shard in self.manifest.shards])

    @contextmanager
    def reading_shards_from(self, store: Store) -> Iterator[None]:
        """Read tensors from copies of the shards in another store, for the length of a block."""
        before = self._reader
        self._reader = ShardReader(store, self.manifest.shards, self.manifest.hash_algorithm)
        try:
            yield
        finally:
            self._reader = before

    def tensor(self, name: str) -> Tensor:
        """The entry of a tensor.

        Raises:
            ManifestError: There is no tensor of that name.
        """
        found = self.manifest.tensors.get(name)
        if found is None:
            raise ManifestError("no such tensor", where=self.where, found=name)
        return found

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's stored bytes, one dimension; a read-only memory map where that is possible.

        Raises:
            ManifestError: There is no such tensor.
            ShardError: A shard is missing or too short.
        """
        return self._reader.read(self.tensor(name).runs())

    def read_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Some stored rows of a tensor, uint8 [count, row_bytes].

        Stored rows are those of `Tensor.geometry()`: for layout column they are the inputs, for
        layout flat there is only one.

        Raises:
            ManifestError: There is no such tensor.
            ShardError: Rows outside the tensor, or a shard is missing or too short.
        """
        tensor = self.tensor(name)
        size = tensor.geometry().row_bytes
        raw = self._reader.read_range(tensor.runs(), first * size, count * size)
        return raw.reshape(count, size)

    def dequantize(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor's values in its logical shape, float32.

        Raises:
            ManifestError: There is no such tensor.
            FormatError: Its type has no codec, or its bytes do not follow the format.
        """
        tensor = self.tensor(name)
        values: npt.NDArray[np.float32] = decode_tensor(
            self.read(name), tensor.parsed_dtype(), tensor.shape, tensor.parsed_layout()
        )
        return values

    @property
    def tokenizer_path(self) -> str | None:
        """Path of the tokenizer's file for a package in a local folder; else None."""
        name = self._tokenizer_name()
        if name is None or not isinstance(self.store, LocalStore):
            return None
        return str(self.store.readable(name))

    def tokenizer_bytes(self) -> bytes | None:
        """Content of the tokenizer's file; None where the manifest names none.

        Raises:
            StoreError: It cannot be read, or is too large.
        """
        name = self._tokenizer_name()
        return None if name is None else read_bounded(self.store, name, JSON_BOUNDS.size)

    def _tokenizer_name(self) -> str | None:
        return self.manifest.tokenizer.file if self.manifest.tokenizer else None

    def close(self) -> None:
        """Let go of the shards; arrays that were handed out stay valid."""
        self.__dict__.pop("graph", None)

    def __enter__(self) -> Package:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Package({self.manifest.model_id!r}, {self.where!r})"

    def _repr_html_(self) -> str:
        """Return a table of the package for notebooks."""
        manifest = self.manifest
        return facts_table(
            f"Package {shown(manifest.model_id)}",
            {
                "location": shown(self.where),
                "model type": shown(manifest.model_type),
                "quantization": shown(manifest.quantization),
                "layers": manifest.architecture.num_layers,
                "context length": f"{manifest.architecture.max_seq_len:,} tokens",
                "vocabulary": f"{manifest.architecture.vocab_size:,} tokens",
                "tensors": f"{len(manifest.tensors):,}",
                "size": f"{manifest.total_size:,} bytes in {len(manifest.shards):,} shards",
                "runnable": "yes" if self.is_runnable else "no",
            },
        )


def open_package(location: str | os.PathLike[str], *, follow_links: bool = False) -> Package:
    """Open a package of any generation.

    Args:
        location: Folder, URL of a folder, or the manifest inside it.
        follow_links: Read what links in the folder lead to, wherever that is.

    Raises:
        StoreError: The path or URL cannot be read.
        ManifestError: Not RDRR, or with faults; its `faults` hold all of them.
    """
    opened = open_manifest(location, follow_links=follow_links)
    faults = list(opened.faults)
    subject = opened.examination.subject
    if subject is not None:
        for rule in FILES:
            faults.extend(rule.faults(subject.manifest, opened.location.store))
    errors = of_severity(faults, "error")
    if errors:
        raise _refusal(opened.location.where, errors)
    return Package(opened, of_severity(faults, "warning"))


def _refusal(where: str, errors: tuple[Fault, ...]) -> ManifestError:
    first = "; ".join(fault.line().removeprefix("error ") for fault in errors[:_LISTED])
    more = f"; and {len(errors) - _LISTED} more" if len(errors) > _LISTED else ""
    return ManifestError(
        f"{len(errors)} fault{'s' * (len(errors) > 1)}: {first}{more}",
        faults=errors,
        where=where,
        hint=f"rdrr validate {where} lists them all",
    )
