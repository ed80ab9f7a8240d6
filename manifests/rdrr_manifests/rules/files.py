"""Rules on the package's files: that they exist and have the right sizes, hashes and values.

Each shard and each tensor is checked separately, so that one bad file does not hide another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np
from rdrr_format.errors import FormatError, RdrrError
from rdrr_format.file_names import EXPECTED, is_plain_name
from rdrr_format.integrity import ALGORITHMS
from rdrr_format.layouts import Geometry
from rdrr_format.shard_reader import ShardReader
from rdrr_format.stores import LocalStore, Store

from rdrr_manifests.faults import Fault, tensor_field
from rdrr_manifests.models import Manifest, Shard, Tensor
from rdrr_manifests.rules.shards import is_hash
from rdrr_manifests.rules.subject import Finding, as_fault
from rdrr_manifests.rules.tokenizer import tokenizer_content

CHUNK_BYTES = 4 << 20
"""Stored bytes of a tensor that are decoded at a time; as float32 they take up to 8 times that."""


@dataclass(frozen=True)
class FileRule:
    """A rule on the files of a package, like `Rule`.

    Attributes:
        id: Identifier of the rule in reports and in docs/SPEC.md.
        check: Yields the findings for a manifest and the store with the package's files.
    """

    id: str
    check: Callable[[Manifest, Store], Iterator[Finding]]

    def faults(self, manifest: Manifest, store: Store) -> Iterator[Fault]:
        """Yield the faults that this rule finds."""
        for finding in self.check(manifest, store):
            yield as_fault(self.id, "error", finding)


def _reader(manifest: Manifest, store: Store) -> ShardReader:
    return ShardReader(store, manifest.shards, manifest.hash_algorithm)


def shard_files(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Check that every shard exists and has the stated size."""
    for index, error in _sizes(manifest, store):
        if error is not None:
            filename = manifest.shards[index].filename
            yield Finding(filename, error.message, error.expected, error.found)


def _sizes(manifest: Manifest, store: Store) -> Iterator[tuple[int, RdrrError | None]]:
    """Yield the index of each shard with a plain file name, and the error of its size, if any."""
    reader = _reader(manifest, store)
    for index, shard in enumerate(manifest.shards):
        if not is_plain_name(shard.filename):
            continue
        try:
            reader.check_size(index)
        except RdrrError as error:
            yield index, error
        else:
            yield index, None


def tokenizer_file(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Check that the tokenizer's file exists."""
    tokenizer = manifest.tokenizer
    if tokenizer is None or tokenizer.file is None:
        return
    if not is_plain_name(tokenizer.file):
        yield Finding("tokenizer.file", "not a plain file name", EXPECTED, tokenizer.file)
        return
    try:
        if store.exists(tokenizer.file):
            store.size(tokenizer.file)
        else:
            yield Finding("tokenizer.file", "no such file in the package", found=tokenizer.file)
    except RdrrError as error:
        yield Finding("tokenizer.file", error.message, error.expected, error.found)


def shard_hashes(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Check that every shard has the stated hash."""
    algorithm = manifest.hash_algorithm
    if algorithm not in ALGORITHMS:
        yield Finding(
            "hashAlgorithm",
            f"this version of rdrr does not check {algorithm} hashes",
            severity="warning",
        )
        return
    reader = _reader(manifest, store)
    doppler_hashes = 0
    for index in _intact_shards(manifest, store):
        shard = manifest.shards[index]
        if not is_hash(shard.hash):
            continue
        try:
            reader.verify(index)
        except RdrrError as error:
            if algorithm == "blake3" and is_doppler_hash(shard, store):
                doppler_hashes += 1
            else:
                yield Finding(shard.filename, error.message, error.expected, error.found)
    if doppler_hashes:
        yield _doppler_warning(doppler_hashes, len(manifest.shards))


def is_doppler_hash(shard: Shard, store: Store) -> bool:
    """Return whether a shard's hash is the variant of BLAKE3 that the public runtime computes."""
    from rdrr_format.doppler_blake3 import doppler_blake3_hex

    if isinstance(store, LocalStore):  # map the file: the function needs the whole shard at once
        store = LocalStore(store.root, follow_links=store.follow_links)
    try:
        return doppler_blake3_hex(store.read(shard.filename)) == shard.hash.lower()
    except RdrrError:
        return False


def _doppler_warning(count: int, shards: int) -> Finding:
    from rdrr_format.doppler_blake3 import NAME

    message = f"{count} of {shards} shards match {NAME}, which other readers of blake3 refuse"
    return Finding("hashAlgorithm", message, "sha256", "blake3", "warning")


def shard_frames(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Check that a compressed shard's seek table fits the file and the stated content size."""
    reader = _reader(manifest, store)
    for index in _intact_shards(manifest, store):
        shard = manifest.shards[index]
        if shard.compression is None:
            continue
        try:
            reader.frames(index).check()
        except RdrrError as error:
            yield Finding(shard.filename, error.message, error.expected, error.found)


def tensor_values(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Check that every tensor can be decoded and that all its values are finite."""
    reader = _reader(manifest, store)
    intact = set(_intact_shards(manifest, store))
    # The rule tensor-overlap reports tensors that share bytes. Without this limit, a hostile
    # manifest could have the same bytes decoded any number of times.
    left = sum(manifest.shards[index].content_size for index in intact)
    for name, tensor in manifest.tensors.items():
        if not all(span.shard_index in intact for span in tensor.byte_spans()):
            continue
        left -= tensor.size
        if left < 0:
            return
        try:
            bad, where = count_non_finite(tensor, reader)
        except RdrrError as error:
            file = f"{PurePath(error.where).name}: " if error.where else ""
            message = f"{file}{error.message}"
            yield Finding(tensor_field(name), message, error.expected, error.found)
            continue
        if bad:
            yield Finding(
                tensor_field(name),
                f"the tensor has values that are not finite, the first in stored row {where}",
                "finite values",
                f"{bad} infinities or NaNs",
            )


def count_non_finite(tensor: Tensor, reader: ShardReader) -> tuple[int, int]:
    """Return the number of infinities and NaNs of a tensor, and the first stored row with one.

    The row is -1 if all values are finite, or if the tensor's type or size cannot be decoded.

    Raises:
        FormatError: The bytes cannot be decoded.
        ShardError: The bytes are outside their shard.
    """
    from rdrr_format.codecs import CODECS
    from rdrr_format.encoding import decode_rows

    try:
        dtype = tensor.parsed_dtype()
    except FormatError:
        return 0, -1  # the rule tensor-dtype reports it
    geometry = tensor.geometry()
    if dtype.name not in CODECS or geometry.size != tensor.size:
        return 0, -1
    bad, first_bad = 0, -1
    for row, start, part in _pieces(geometry, dtype.block_bytes):
        raw = reader.read_range(tensor.byte_spans(), start, part.size)
        with np.errstate(all="ignore"):  # NaNs are expected here and need no warning
            rows = decode_rows(raw, dtype, part, 0, part.rows)
        finite = np.isfinite(rows)
        if not finite.all():
            bad += int(finite.size - np.count_nonzero(finite))
            if first_bad < 0:
                first_bad = row + int(np.argmin(finite.all(axis=1)))
    return bad, first_bad


def _pieces(geometry: Geometry, block_bytes: int) -> Iterator[tuple[int, int, Geometry]]:
    """Yield parts of a tensor of at most `CHUNK_BYTES`: several rows, or blocks of one long row.

    Yields:
        The first stored row, the first byte within the tensor, and the geometry of the part.
    """
    if not geometry.size:
        return
    if geometry.row_bytes <= CHUNK_BYTES:
        step = CHUNK_BYTES // geometry.row_bytes
        for row in range(0, geometry.rows, step):
            part = replace(geometry, rows=min(step, geometry.rows - row))
            yield row, row * geometry.row_bytes, part
        return
    step = CHUNK_BYTES // block_bytes
    for row in range(geometry.rows):
        for block in range(0, geometry.row_blocks, step):
            blocks = min(step, geometry.row_blocks - block)
            left = geometry.row_elements - block * geometry.block_elements
            part = Geometry(
                1,
                min(blocks * geometry.block_elements, left),
                blocks,
                blocks * block_bytes,
                geometry.block_elements,
            )
            yield row, row * geometry.row_bytes + block * block_bytes, part


def _intact_shards(manifest: Manifest, store: Store) -> Iterator[int]:
    """Yield the index of each shard in which the rule shard-file finds no fault, each file once."""
    seen: set[str] = set()
    for index, error in _sizes(manifest, store):
        name = manifest.shards[index].filename
        if error is None and name not in seen:
            seen.add(name)
            yield index


FILES = (FileRule("shard-file", shard_files), FileRule("tokenizer-file", tokenizer_file))
DEEP = (
    FileRule("shard-hash", shard_hashes),
    FileRule("shard-frames", shard_frames),
    FileRule("tensor-values", tensor_values),
    FileRule("tokenizer-content", tokenizer_content),
)
