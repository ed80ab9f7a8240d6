"""The commands on a server that speaks S3."""

from __future__ import annotations

import pytest
from support.commands import EXAMPLE, error_line, rdrr
from support.object_store import contents, files, s3_server, upload


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as url:
        yield url


def test_every_command_takes_what_convert_put_on_an_object_store(bucket, tmp_path):
    source, made = upload(EXAMPLE, f"{bucket}/small-llama"), f"{bucket}/made"
    local = tmp_path / "local"
    for words in ((EXAMPLE, local), (source, made)):
        done = rdrr("convert", *words, "--transpose-weights", "--quiet")
        assert (done.code, done.err) == (0, "")
    assert contents(made) == files(local)
    for command in (
        ("validate", "{}", "--deep", "--json"),
        ("inspect", "{}", "--tensors", "--json"),
        ("generate", "{}", "--prompt", "And it", "--max-tokens", "4", "--backend", "cpu"),
    ):
        there, here = (rdrr(*(w.format(path) for w in command)) for path in (made, local))
        assert there.code == 0, there.err
        assert there.out.replace(made, str(local)) == here.out, command
    again = rdrr("convert", source, made, "--quiet")
    assert "exists already" in error_line(again)
    assert (
        "exists already" in rdrr("convert", source, f"file://{local}", "--json").json()["message"]
    )
    assert "no manifest.json" in error_line(rdrr("inspect", f"{bucket}/nowhere"))
