"""An opened package: its manifest, its graph, and its tensors, which are read on demand.

Opening checks the structure of the manifest and the presence of the files. It does not hash the
files (`rdrr_manifests.loading` does so while they are loaded) and does not decode them
(`validate(deep=True)` does). Packages are written by the converter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import numpy.typing as npt
from rdrr_format.bounded_tokenizer import JSON_BOUNDS
from rdrr_format.closing import Closing
from rdrr_format.encoding import decode_tensor
from rdrr_format.errors import ManifestError
from rdrr_format.html_tables import facts_table
from rdrr_format.hub import fetch_files
from rdrr_format.misuse import explained
from rdrr_format.shard_reader import ShardReader
from rdrr_format.stores import LocalStore, Store, read_bounded

from rdrr_manifests.faults import Fault, ValidationReport, of_severity, shown
from rdrr_manifests.graph import Graph, VisionGraph, derive_mtp, derive_vision
from rdrr_manifests.models import Manifest, Tensor
from rdrr_manifests.rules.files import FILES
from rdrr_manifests.validation import OpenedManifest, open_manifest, validate

__all__ = ["Package", "ValidationReport", "open_package", "validate"]

_LISTED = 3


class Package(Closing):
    """An opened package, as returned by `open_package`.

    Args:
        opened: The manifest, read and examined.
        warnings: Warnings of the rules.

    Attributes:
        manifest: The manifest, translated into the current generation.
        store: The store that holds the files.
        where: The path or URL that the package was opened with.
        generation: Generation that the manifest was written in.
        notes: Older spellings that were translated without loss.
        warnings: Warnings of the rules.
    """

    def __init__(self, opened: OpenedManifest, warnings: tuple[Fault, ...]) -> None:
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
            ManifestError: The package is valid, but needs ops that this version of rdrr lacks.
        """
        graph = self._examination.graph
        if isinstance(graph, Graph):
            return graph
        raise ManifestError(
            graph.message,
            where=f"{self.where}: {graph.where}" if graph.where else self.where,
            expected=graph.expected,
            found=graph.found,
            faults=graph.faults,
        )

    @cached_property
    def mtp_graph(self) -> Graph | None:
        """The graph of the draft head of multi-token prediction; None if the package has none.

        Raises:
            ManifestError: The head is incomplete, or needs ops that this version of rdrr lacks.
        """
        return derive_mtp(self.manifest)

    @cached_property
    def vision_graph(self) -> VisionGraph | None:
        """The graph of the vision tower; None if the package has none."""
        return derive_vision(self.manifest)

    @property
    def is_runnable(self) -> bool:
        """Whether this version of rdrr has an op for everything in the model."""
        return isinstance(self._examination.graph, Graph)

    @property
    def obstacles(self) -> tuple[Fault, ...]:
        """The reasons why this version of rdrr cannot run the model; empty if it can."""
        graph = self._examination.graph
        if isinstance(graph, Graph):
            return ()
        fault = Fault("graph-support", "warning", graph.where or "", graph.message)
        return tuple(graph.faults) or (fault,)

    def fetch(self) -> None:
        """Download all shards if the store keeps local copies, before all of them are read.

        Raises:
            StoreError: A shard cannot be downloaded.
        """
        fetch_files(self.store, [shard.filename for shard in self.manifest.shards])

    @contextmanager
    def reading_shards_from(self, store: Store) -> Iterator[None]:
        """Read tensors from copies of the shards in another store, until the `with` block ends."""
        before = self._reader
        self._reader = ShardReader(store, self.manifest.shards, self.manifest.hash_algorithm)
        try:
            yield
        finally:
            self._reader = before

    def tensor(self, name: str) -> Tensor:
        """Return the manifest's entry of a tensor.

        Raises:
            ManifestError: There is no tensor of that name.
        """
        tensor = self.manifest.tensors.get(name)
        if tensor is None:
            raise ManifestError("no such tensor", where=self.where, found=name)
        return tensor

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a tensor's stored bytes, uint8 [size]; a read-only memory map where possible.

        Raises:
            ManifestError: There is no such tensor.
            ShardError: A shard is missing or too short.
        """
        return self._reader.read(self.tensor(name).byte_spans())

    def read_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Return stored rows of a tensor, uint8 [count, row_bytes].

        Stored rows are those of `Tensor.geometry()`: in the column layout a row belongs to one
        input, and in the flat layout there is only one row.

        Raises:
            ManifestError: There is no such tensor.
            ShardError: The rows are outside the tensor, or a shard is missing or too short.
        """
        tensor = self.tensor(name)
        size = tensor.geometry().row_bytes
        raw = self._reader.read_range(tensor.byte_spans(), first * size, count * size)
        return raw.reshape(count, size)

    def dequantize(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor's values in its logical shape, float32.

        Raises:
            ManifestError: There is no such tensor.
            FormatError: The storage type has no codec, or the bytes do not follow the format.
            ShardError: A shard is missing or too short.
        """
        tensor = self.tensor(name)
        values: npt.NDArray[np.float32] = decode_tensor(
            self.read(name), tensor.parsed_dtype(), tensor.shape, tensor.parsed_layout()
        )
        return values

    @property
    def tokenizer_path(self) -> str | None:
        """Path of the tokenizer's file; None if there is none or the package is not local."""
        name = self._tokenizer_name()
        if name is None or not isinstance(self.store, LocalStore):
            return None
        return str(self.store.readable(name))

    def tokenizer_bytes(self) -> bytes | None:
        """Return the content of the tokenizer's file; None if the manifest names no file.

        Raises:
            StoreError: The file cannot be read or is too large.
        """
        name = self._tokenizer_name()
        return None if name is None else read_bounded(self.store, name, JSON_BOUNDS.size)

    def _tokenizer_name(self) -> str | None:
        return self.manifest.tokenizer.file if self.manifest.tokenizer else None

    def close(self) -> None:
        """Release the shards; arrays that were returned before stay valid."""
        self.__dict__.pop("graph", None)

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


@explained
def open_package(
    location: str | os.PathLike[str], *, follow_links: bool = False, bare: bool = False
) -> Package:
    """Open a package of any generation.

    Args:
        location: Path or URL of the package's folder or of its manifest.
        follow_links: Read the targets of links in the folder, wherever they are.
        bare: If the location is that of a manifest, do not require the files that belong to it.
            What the manifest says of the package can then be read, but no tensor.

    Raises:
        StoreError: The path or URL cannot be read.
        ManifestError: It is not an RDRR package, or it has errors; `faults` lists all of them.
    """
    opened = open_manifest(location, follow_links=follow_links)
    faults = list(opened.faults)
    subject = opened.examination.subject
    if subject is not None and not (bare and opened.location.is_bare):
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
        hint=f"`rdrr validate {where}` lists all of them",
    )
