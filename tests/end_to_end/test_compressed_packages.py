"""Compressed packages work like others, from a disk or from a web server."""

from __future__ import annotations

import json

from support.commands import rdrr
from support.range_server import served

STORAGE = ("--compress", "zstd:1", "--hash", "blake3", "--align", "4KiB", "--shard-size", "1MiB")


def test_it_validates_and_generates_the_same_text_as_a_plain_one(
    shallow_checkpoint, shallow_package, tmp_path
):
    changes = ("--transpose-weights", "--fuse-gate-up")
    done = rdrr(
        "convert", shallow_checkpoint, tmp_path / "small-llama", *changes, *STORAGE, "--workers", 2
    )
    assert done.code == 0, done.err
    assert "uncompressed" in done.out
    manifest = json.loads((tmp_path / "small-llama" / "manifest.json").read_text(encoding="utf-8"))
    assert {shard["compression"] for shard in manifest["shards"]} == {"zstd"}
    text = ("--prompt", "And it came to pass", "--backend", "cpu", "--max-tokens", 6)
    expected = rdrr("generate", shallow_package, *text).out
    with served(tmp_path) as url:
        for place in (tmp_path / "small-llama", f"{url}/small-llama"):
            rdrr("validate", place, "--deep", "--strict", code=0)
            assert rdrr("generate", place, *text).out == expected
    assert "uncompressed" in rdrr("inspect", tmp_path / "small-llama").out
    assert "uncompressed" not in rdrr("inspect", shallow_package).out  # control
