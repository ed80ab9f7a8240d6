"""Bounds on the cost of shards: of decompressing them, and of validating all that they hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from rdrr_format import seek_table
from rdrr_format.decompression import FREE_CONTENT, MAX_EXPANSION, check_content
from rdrr_format.errors import ShardError
from rdrr_format.frame_writer import compress_frame
from rdrr_format.seek_table import MAX_FRAME, MAX_FRAMES, encode_seek_table
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import LocalStore
from rdrr_manifests.validation import validate
from support.costs import MIB, cheap
from support.manifests import valid_manifest, write_package


def zstd_shard(size: int, content: int) -> ShardInfo:
    return ShardInfo(0, "s.bin.zst", size, "0" * 64, 0, "zstd", content)


class TestZstd:
    @pytest.mark.parametrize("sizes", [(0,), (1000,), (1 << 30, 1 << 20, 5)])
    def test_the_declared_uncompressed_size_is_bounded(self, sizes):
        most = FREE_CONTENT + MAX_EXPANSION * sum(sizes)
        inside = [zstd_shard(size, 0) for size in sizes[1:]] + [zstd_shard(sizes[0], most)]
        outside = [zstd_shard(size, 0) for size in sizes[1:]] + [zstd_shard(sizes[0], most + 1)]
        check_content(inside)
        with pytest.raises(ShardError, match="too much content"):
            check_content(outside)

    def test_uncompressed_shards_declare_no_uncompressed_size(self):
        check_content([ShardInfo(0, "s.bin", 1, "0" * 64, 0)])

    def write_bomb(self, folder: Path, content: int, *, frame: int = MAX_FRAME) -> dict[str, Any]:
        """Write a package with one tensor of zeros, in zstd frames of some hundred bytes each."""
        raw = compress_frame(bytes(frame), 19)
        frames = content // frame
        shard = raw * frames + encode_seek_table([(len(raw), frame)] * frames)
        manifest = valid_manifest(layers=1)
        manifest["tensors"] = {
            "zeros": {"shape": [content // 4], "dtype": "F32", "size": content, "shard": 0}
            | {"offset": 0, "role": "other"}
        }
        manifest["shards"] = [
            {"index": 0, "filename": "s.bin.zst", "size": len(shard), "offset": 0}
            | {"hash": hashlib.sha256(shard).hexdigest(), "compression": "zstd"}
            | {"uncompressedSize": content}
        ]
        manifest["totalSize"] = len(shard)
        folder.mkdir(exist_ok=True)
        (folder / "s.bin.zst").write_bytes(shard)
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        return manifest

    @staticmethod
    def rules(folder: Path) -> set[str]:
        faults = validate(folder, deep=True).faults
        return {fault.rule for fault in faults if fault.rule.startswith(("shard", "tensor"))}

    def test_a_decompression_bomb_is_refused_before_it_is_decoded(self, tmp_path):
        size = 128 * MAX_FRAME  # 2 GiB in 70 KB
        self.write_bomb(tmp_path, size)
        assert (tmp_path / "s.bin.zst").stat().st_size < 100_000
        with cheap(8 * MIB):
            assert self.rules(tmp_path) == {"shard-compression", "shard-frames", "tensor-values"}

    def test_decoded_content_is_never_held_as_a_whole(self, tmp_path):
        self.write_bomb(tmp_path, 12 * MAX_FRAME)  # one row of 192 MiB
        with cheap(96 * MIB):
            assert self.rules(tmp_path) == set()

    def test_the_size_of_a_frame_is_bounded(self, tmp_path):
        self.write_bomb(tmp_path, MAX_FRAME)
        assert self.rules(tmp_path) == set()
        self.write_bomb(tmp_path, MAX_FRAME + 4, frame=MAX_FRAME + 4)
        with cheap(8 * MIB):
            assert self.rules(tmp_path) == {"shard-frames", "tensor-values"}

    @pytest.mark.parametrize("more", [0, 1])
    @pytest.mark.parametrize(
        "most", [1 << 10, pytest.param(MAX_FRAMES, marks=pytest.mark.thorough)]
    )
    def test_the_number_of_frames_is_bounded(self, tmp_path, most, more, monkeypatch):
        monkeypatch.setattr(seek_table, "MAX_FRAMES", most)
        manifest = self.write_bomb(tmp_path, MIB)
        raw = compress_frame(bytes(MIB), 3)
        table = [(len(raw), MIB)] + [(0, 0)] * (most + more - 1)
        shard = raw + encode_seek_table(table)
        (tmp_path / "s.bin.zst").write_bytes(shard)
        manifest["shards"][0] |= {
            "size": len(shard),
            "uncompressedSize": MIB,
            "hash": hashlib.sha256(shard).hexdigest(),
        }
        manifest["tensors"]["zeros"] |= {"shape": [MIB // 4], "size": MIB}
        manifest["totalSize"] = len(shard)
        (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        expected = set() if not more else {"shard-frames", "tensor-values"}
        assert self.rules(tmp_path) == expected


class TestDeepValidation:
    """Deep validation reads the same bytes once, however often a manifest names them."""

    @pytest.fixture
    def manifest(self, tmp_path: Path, rng: Any) -> dict[str, Any]:
        write_package(tmp_path, rng)
        assert validate(tmp_path, deep=True).ok()
        return dict(json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8")))

    @staticmethod
    def examined(folder: Path, manifest: object, monkeypatch: Any) -> tuple[set[str], int]:
        """Return the rules that validation finds broken, and how many bytes it read."""
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        sizes = []
        whole = LocalStore.read

        def read(*arguments: Any) -> Any:
            result = whole(*arguments)
            sizes.append(result.nbytes)
            return result

        monkeypatch.setattr(LocalStore, "read", read)
        return {fault.rule for fault in validate(folder, deep=True).faults}, sum(sizes)

    def test_bytes_that_tensors_share_are_read_only_once(self, tmp_path, manifest, monkeypatch):
        spans = [{"shardIndex": 0, "offset": 0, "size": 32768}] * 2000
        size = 32768 * len(spans)
        manifest["tensors"]["endless"] = {
            "shape": [size // 4], "dtype": "F32", "size": size, "spans": spans, "role": "other"
        }  # fmt: skip
        rules, read = self.examined(tmp_path, manifest, monkeypatch)
        assert "tensor-overlap" in rules
        assert read < 2 * MIB

    def test_a_file_that_several_shards_name_is_read_once(self, tmp_path, manifest, monkeypatch):
        manifest["shards"] += [manifest["shards"][0]] * 500
        rules, read = self.examined(tmp_path, manifest, monkeypatch)
        assert "shard-name-unique" in rules
        assert read < 2 * MIB

    def test_a_huge_number_of_empty_rows_is_refused(self, tmp_path, manifest, monkeypatch):
        manifest["tensors"]["nothing"] = {
            "shape": [10**18, 0], "dtype": "F32", "size": 0, "shard": 0, "offset": 0
        }  # fmt: skip
        assert "tensor-shape" in self.examined(tmp_path, manifest, monkeypatch)[0]
