"""Rules that need the package's files: that they are there, have their sizes, hashes and values.

Each shard and each tensor is examined on its own, so one bad file does not hide another.
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

from rdrr_manifests.faults import Fault, Severity, tensor_field
from rdrr_manifests.models import Manifest, Shard, Tensor
from rdrr_manifests.rules.shards import is_hash
from rdrr_manifests.rules.subject import Finding, as_fault
from rdrr_manifests.rules.tokenizer import tokenizer_content

CHUNK_BYTES = 4 << 20
"""Stored bytes of a tensor that are decoded at a time; as float32 they are up to eight times it."""


@dataclass(frozen=True)
class FileRule:
    """A rule on the files of a package; as `Rule`, with the store to look into."""

    id: str
    check: Callable[[Manifest, Store], Iterator[Finding]]
    severity: Severity = "error"

    def faults(self, manifest: Manifest, store: Store) -> Iterator[Fault]:
        """What breaks this rule."""
        for finding in self.check(manifest, store):
            yield as_fault(self.id, self.severity, finding)


def _reader(manifest: Manifest, store: Store) -> ShardReader:
    return ShardReader(store, manifest.shards, manifest.hash_algorithm)


def shard_files(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Every shard is there, with its declared size."""
    for index, error in _sizes(manifest, store):
        if error is not None:
            filename = manifest.shards[index].filename
            yield Finding(filename, error.message, error.expected, error.found)


def _sizes(manifest: Manifest, store: Store) -> Iterator[tuple[int, RdrrError | None]]:
    """Shards whose names are fit to be opened, and what is wrong with their size."""
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
    """The tokenizer's file is there."""
    tokenizer = manifest.tokenizer
    if tokenizer is None or tokenizer.file is None:
        return
    if not is_plain_name(tokenizer.file):
        yield Finding("tokenizer.file", "not a plain file name", EXPECTED, tokenizer.file)
    elif not store.exists(tokenizer.file):
        yield Finding("tokenizer.file", "no such file in the package", found=tokenizer.file)
    else:
        try:
            store.size(tokenizer.file)
        except RdrrError as error:
            yield Finding("tokenizer.file", error.message, error.expected, error.found)


def shard_hashes(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """The bytes of every shard have the declared hash."""
    algorithm = manifest.hash_algorithm
    if algorithm not in ALGORITHMS:
        yield Finding(
            "hashAlgorithm",
            f"hashes of {algorithm} are not checked by this version",
            severity="warning",
        )
        return
    reader = _reader(manifest, store)
    odd = 0
    for index in _sound_shards(manifest, store):
        shard = manifest.shards[index]
        if not is_hash(shard.hash):
            continue
        try:
            reader.verify(index)
        except RdrrError as error:
            if algorithm == "blake3" and is_doppler_hash(shard, store):
                odd += 1
            else:
                yield Finding(shard.filename, error.message, error.expected, error.found)
    if odd:
        yield _doppler_hashes(odd, len(manifest.shards))


def is_doppler_hash(shard: Shard, store: Store) -> bool:
    """Whether a shard's hash is what the public runtime computes under the name of BLAKE3."""
    from rdrr_format.doppler_blake3 import doppler_blake3_hex

    if isinstance(store, LocalStore):  # the function takes a shard as a whole, which is mapped then
        store = LocalStore(store.root, follow_links=store.follow_links)
    try:
        return doppler_blake3_hex(store.read(shard.filename)) == shard.hash.lower()
    except RdrrError:
        return False


def _doppler_hashes(odd: int, shards: int) -> Finding:
    from rdrr_format.doppler_blake3 import NAME

    which = f"{odd} of {shards} shards match {NAME}, which other readers of blake3 refuse"
    return Finding("hashAlgorithm", which, "sha256", "blake3", "warning")


def shard_frames(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """A compressed shard's table fits the file and holds as many bytes as are declared."""
    reader = _reader(manifest, store)
    for index in _sound_shards(manifest, store):
        shard = manifest.shards[index]
        if shard.compression is None:
            continue
        try:
            reader.frames(index).check()
        except RdrrError as error:
            yield Finding(shard.filename, error.message, error.expected, error.found)


def tensor_values(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Every tensor can be decoded, and all its values are finite."""
    reader = _reader(manifest, store)
    sound = set(_sound_shards(manifest, store))
    # Tensors that share bytes are faults already; the same bytes are not decoded for each of them.
    left = sum(manifest.shards[index].content_size for index in sound)
    for name, tensor in manifest.tensors.items():
        if not all(run.shard_index in sound for run in tensor.byte_spans()):
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
                f"values that are not finite, the first in stored row {where}",
                "finite values",
                f"{bad} infinities or NaNs",
            )


def count_non_finite(tensor: Tensor, reader: ShardReader) -> tuple[int, int]:
    """Infinities and NaNs of a tensor, and the first stored row that has one (-1: none).

    Raises:
        FormatError: The bytes cannot be decoded.
        ShardError: They are not there.
    """
    from rdrr_format.codecs import CODECS
    from rdrr_format.encoding import decode_rows

    try:
        dtype = tensor.parsed_dtype()
    except FormatError:
        return 0, -1  # the rule tensor-dtype says what there is to say
    geometry = tensor.geometry()
    if dtype.name not in CODECS or geometry.size != tensor.size:
        return 0, -1
    bad, first_bad = 0, -1
    for row, start, part in _pieces(geometry, dtype.block_bytes):
        raw = reader.read_range(tensor.byte_spans(), start, part.size)
        with np.errstate(all="ignore"):  # NaNs are what is looked for, not a surprise
            rows = decode_rows(raw, dtype, part, 0, part.rows)
        finite = np.isfinite(rows)
        if not finite.all():
            bad += int(finite.size - np.count_nonzero(finite))
            if first_bad < 0:
                first_bad = row + int(np.argmin(finite.all(axis=1)))
    return bad, first_bad


def _pieces(geometry: Geometry, block_bytes: int) -> Iterator[tuple[int, int, Geometry]]:
    """Parts of a tensor of about `CHUNK_BYTES`: rows, or blocks of one where a row has more.

    Yields:
        First stored row, first byte in the tensor, and the part's own geometry.
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


def _sound_shards(manifest: Manifest, store: Store) -> Iterator[int]:
    """Shards that the rule shard-file has nothing against, each file once."""
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
