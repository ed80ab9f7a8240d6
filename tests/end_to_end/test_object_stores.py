"""The commands on servers with the protocols of S3 and Google Cloud Storage."""

from __future__ import annotations

import pytest
from support.checkpoints import make_checkpoint
from support.commands import error_line, rdrr
from support.object_store import contents, files, gs_server, s3_server, upload
from support.tiny_models import TINY_MODELS


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as url:
        yield url


def test_every_command_reads_what_convert_wrote_to_an_object_store(bucket, tmp_path, rng):
    checkpoint = make_checkpoint(TINY_MODELS[0], tmp_path / "small", rng, num_hidden_layers=1)
    source, target = upload(checkpoint, f"{bucket}/small"), f"{bucket}/made"
    local = tmp_path / "local"
    for words in ((checkpoint, local), (source, target)):
        done = rdrr("convert", *words, "--transpose-weights", "--quiet")
        assert (done.code, done.err) == (0, "")
    assert contents(target) == files(local)
    for command in (
        ("validate", "{}", "--deep", "--json"),
        ("inspect", "{}", "--tensors", "--json"),
        ("generate", "{}", "--prompt", "And it", "--max-tokens", "4", "--backend", "cpu"),
    ):
        there, here = (rdrr(*(w.format(path) for w in command)) for path in (target, local))
        assert there.code == 0, there.err
        assert there.out.replace(target, str(local)) == here.out, command
    again = rdrr("convert", source, target, "--quiet")
    assert "exists already" in error_line(again)
    assert (
        "exists already" in rdrr("convert", source, f"file://{local}", "--json").json()["message"]
    )
    assert "no manifest.json" in error_line(rdrr("inspect", f"{bucket}/nowhere"))


@pytest.mark.thorough
def test_google_cloud_storage_stores_and_returns_the_same_bytes_as_a_folder(
    shallow_checkpoint, tmp_path
):
    local = tmp_path / "local"
    with gs_server() as bucket:
        source, target = upload(shallow_checkpoint, f"{bucket}/small-llama"), f"{bucket}/made"
        for words in ((shallow_checkpoint, local), (source, target)):
            assert rdrr("convert", *words, "--compress", "zstd", "--quiet").code == 0
        assert contents(target) == files(local)
        there, here = (rdrr("validate", path, "--deep", "--json") for path in (target, local))
        assert (there.code, there.out.replace(target, str(local))) == (0, here.out)
        assert "exists already" in error_line(rdrr("convert", source, target, "--quiet"))
        rdrr("convert", source, target, "--quiet", "--overwrite", code=0)
        assert set(contents(target)) == {*files(local), "shard_00000.bin"} - {"shard_00000.bin.zst"}
        assert "no manifest.json" in error_line(rdrr("inspect", f"{bucket}/nowhere"))
