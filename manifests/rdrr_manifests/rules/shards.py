"""Rules on the table of shards, as far as the manifest alone can tell."""

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
    """Whether a text has the form of a 256-bit hash."""
    return _HEX.fullmatch(text) is not None


def present(subject: Subject) -> Iterator[Finding]:
    """There is at least one shard."""
    if not subject.manifest.shards:
        yield Finding("shards", "empty", "at least one shard")


def indexes(subject: Subject) -> Iterator[Finding]:
    """A shard's index is its position."""
    for position, shard in enumerate(subject.manifest.shards):
        if shard.index != position:
            yield Finding(f"shards[{position}].index", "not its position", position, shard.index)


def sizes(subject: Subject) -> Iterator[Finding]:
    """No shard is empty."""
    for position, shard in enumerate(subject.manifest.shards):
        if shard.size == 0:
            yield Finding(f"shards[{position}].size", "empty shard", "more than 0", 0)


def offsets(subject: Subject) -> Iterator[Finding]:
    """A shard's offset is the sum of the sizes before it."""
    total = 0
    for position, shard in enumerate(subject.manifest.shards):
        if shard.offset != total:
            yield Finding(
                f"shards[{position}].offset",
                "not the sum of the sizes before it",
                total,
                shard.offset,
            )
        total += shard.size


def total_size(subject: Subject) -> Iterator[Finding]:
    """`totalSize` is the sum of the shards' sizes."""
    total = sum(shard.size for shard in subject.manifest.shards)
    if subject.manifest.total_size != total:
        yield Finding(
            "totalSize", "not the sum of the shards' sizes", total, subject.manifest.total_size
        )


def compressions(subject: Subject) -> Iterator[Finding]:
    """A compressed shard names a known method and its content's size; another names neither."""
    for position, shard in enumerate(subject.manifest.shards):
        field, size = f"shards[{position}]", shard.uncompressed_size
        if shard.compression not in (None, ZSTD):
            yield Finding(f"{field}.compression", "unknown compression", ZSTD, shard.compression)
        elif shard.compression is not None and not size:
            yield Finding(f"{field}.uncompressedSize", "missing", "more than 0", size)
        elif shard.compression is None and size is not None:
            yield Finding(f"{field}.uncompressedSize", "given without compression", None, size)
    try:
        check_content(subject.manifest.shards)
    except ShardError as error:
        yield Finding("shards", error.message, error.expected, error.found)


def names(subject: Subject) -> Iterator[Finding]:
    """A shard's file name is a plain name, so that it cannot lead out of the folder."""
    for position, shard in enumerate(subject.manifest.shards):
        if not is_plain_name(shard.filename):
            yield Finding(
                f"shards[{position}].filename",
                "not a plain file name",
                EXPECTED,
                shard.filename,
            )


def unique_names(subject: Subject) -> Iterator[Finding]:
    """No two shards are the same file, on file systems that ignore case either."""
    seen: dict[str, int] = {}
    for position, shard in enumerate(subject.manifest.shards):
        first = seen.setdefault(shard.filename.casefold(), position)
        if first != position:
            yield Finding(
                f"shards[{position}].filename",
                f"the same file as shards[{first}]",
                "a file of its own",
                shard.filename,
            )


def hashes(subject: Subject) -> Iterator[Finding]:
    """A shard's hash is 64 hexadecimal digits."""
    for position, shard in enumerate(subject.manifest.shards):
        field = f"shards[{position}].hash"
        if not is_hash(shard.hash):
            message = (
                "a placeholder, not a hash" if "placeholder" in shard.hash.lower() else "not a hash"
            )
            yield Finding(field, message, "64 hexadecimal digits", shard.hash)
        elif not shard.hash.strip("0"):
            yield Finding(field, "all zeros: a placeholder?", severity="warning")


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
