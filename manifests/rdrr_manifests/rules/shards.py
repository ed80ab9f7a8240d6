"""Rules on the table of shards that need only the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rdrr_format.compression import ZSTD
from rdrr_format.decompression import check_content
from rdrr_format.errors import ShardError
from rdrr_format.file_names import EXPECTED, is_plain_name

from rdrr_manifests.rules.subject import Finding, Rule, Subject

_HEX = re.compile(r"[0-9a-fA-F]{64}")


def is_hash(text: str) -> bool:
    """Return whether a string has the form of a 256-bit hash."""
    return _HEX.fullmatch(text) is not None


def present(subject: Subject) -> Iterator[Finding]:
    """Check that there is at least one shard."""
    if not subject.manifest.shards:
        yield Finding("shards", "the list is empty", "at least one shard")


def indexes(subject: Subject) -> Iterator[Finding]:
    """Check that the index of each shard is its position in the list."""
    for position, shard in enumerate(subject.manifest.shards):
        if shard.index != position:
            yield Finding(
                f"shards[{position}].index",
                "differs from the shard's position in the list",
                position,
                shard.index,
            )


def sizes(subject: Subject) -> Iterator[Finding]:
    """Check that no shard is empty."""
    for position, shard in enumerate(subject.manifest.shards):
        if shard.size == 0:
            yield Finding(f"shards[{position}].size", "the shard is empty", "more than 0", 0)


def offsets(subject: Subject) -> Iterator[Finding]:
    """Check that the offset of each shard is the sum of the sizes of the shards before it."""
    total = 0
    for position, shard in enumerate(subject.manifest.shards):
        if shard.offset != total:
            yield Finding(
                f"shards[{position}].offset",
                "differs from the sum of the sizes of the shards before it",
                total,
                shard.offset,
            )
        total += shard.size


def total_size(subject: Subject) -> Iterator[Finding]:
    """Check that `totalSize` is the sum of the sizes of the shards."""
    total = sum(shard.size for shard in subject.manifest.shards)
    if subject.manifest.total_size != total:
        yield Finding(
            "totalSize",
            "differs from the sum of the sizes of the shards",
            total,
            subject.manifest.total_size,
        )


def compressions(subject: Subject) -> Iterator[Finding]:
    """Check that a compressed shard states a known method and the size of its content."""
    for position, shard in enumerate(subject.manifest.shards):
        field, size = f"shards[{position}]", shard.uncompressed_size
        if shard.compression not in (None, ZSTD):
            yield Finding(f"{field}.compression", "unknown compression", ZSTD, shard.compression)
        elif shard.compression is not None and not size:
            yield Finding(
                f"{field}.uncompressedSize",
                "a compressed shard needs this field",
                "more than 0",
                size,
            )
        elif shard.compression is None and size is not None:
            yield Finding(
                f"{field}.uncompressedSize",
                "the field is given for a shard that is not compressed",
                None,
                size,
            )
    try:
        check_content(subject.manifest.shards)
    except ShardError as error:
        yield Finding("shards", error.message, error.expected, error.found)


def names(subject: Subject) -> Iterator[Finding]:
    """Check that file names are plain names, so that they cannot point outside the folder."""
    for position, shard in enumerate(subject.manifest.shards):
        if not is_plain_name(shard.filename):
            yield Finding(
                f"shards[{position}].filename",
                "not a plain file name",
                EXPECTED,
                shard.filename,
            )


def unique_names(subject: Subject) -> Iterator[Finding]:
    """Check that no two shards are the same file, even on file systems that ignore case."""
    seen: dict[str, int] = {}
    for position, shard in enumerate(subject.manifest.shards):
        first = seen.setdefault(shard.filename.casefold(), position)
        if first != position:
            yield Finding(
                f"shards[{position}].filename",
                f"the same file as shards[{first}]",
                "a separate file for each shard",
                shard.filename,
            )


def hashes(subject: Subject) -> Iterator[Finding]:
    """Check that the hash of each shard has 64 hexadecimal digits."""
    for position, shard in enumerate(subject.manifest.shards):
        field = f"shards[{position}].hash"
        if not is_hash(shard.hash):
            message = (
                "a placeholder, not a hash" if "placeholder" in shard.hash.lower() else "not a hash"
            )
            yield Finding(field, message, "64 hexadecimal digits", shard.hash)
        elif not shard.hash.strip("0"):
            yield Finding(
                field, "all digits are zero, so it may be a placeholder", severity="warning"
            )


_NEEDS = ("shards",)
RULES = (
    Rule("shard-list", present, needs=_NEEDS),
    Rule("shard-index", indexes, needs=_NEEDS),
    Rule("shard-size", sizes, needs=_NEEDS),
    Rule("shard-offset", offsets, needs=_NEEDS),
    Rule("total-size", total_size, needs=("shards", "totalSize")),
    Rule("shard-compression", compressions, needs=_NEEDS),
    Rule("shard-name", names, needs=_NEEDS),
    Rule("shard-name-unique", unique_names, needs=_NEEDS),
    Rule("shard-hash-form", hashes, needs=_NEEDS),
)
