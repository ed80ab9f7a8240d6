"""The Hugging Face Hub through its own client: a fake hub, the cache, environment variables."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from support.adapters import adapter_tensors, write_adapter
from support.commands import error_line, rdrr, rdrr_each
from support.object_store import files
from support.sentence_checkpoints import add_modules

NAME = "org/small-llama"
WANTED = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]
QUICK = ("--prompt", "And it", "--max-tokens", "4", "--backend", "cpu")


@pytest.fixture(scope="module")
def local(shallow_checkpoint, tmp_path_factory):
    """Convert the bundled checkpoint from its folder."""
    folder = tmp_path_factory.mktemp("local") / "out"
    assert rdrr("convert", shallow_checkpoint, folder, "--quiet").code == 0
    return folder


@pytest.mark.thorough
def test_a_checkpoint_on_the_hub_gives_the_bytes_of_a_local_one_and_works_offline_later(
    shallow_checkpoint, hub, variables, local, tmp_path
):
    others = {"README.md": b"card", "pytorch_model.bin": b"the same again", "notes.txt": b""}
    hub.add(NAME, files(shallow_checkpoint) | others | {"consolidated.safetensors": b"and again"})
    [done] = rdrr_each(["convert", f"hf://{NAME}", tmp_path / "out", "--quiet"], **variables)
    assert (done.code, done.err) == (0, "")
    assert files(tmp_path / "out") == files(local)
    assert hub.downloads() == WANTED
    del hub.requests[:]
    offline = variables | {"HF_HUB_OFFLINE": "1"}
    again, unknown = rdrr_each(
        ["convert", f"hf://{NAME}", tmp_path / "again", "--quiet"],
        ["convert", "hf://org/other", tmp_path / "other", "--quiet"],
        **offline,
    )
    assert again.code == 0, again.err
    assert files(tmp_path / "again") == files(local)
    assert hub.requests == []
    assert "the cache does not have it" in error_line(unknown)


@pytest.mark.thorough
def test_a_revision_and_a_single_file_can_be_named(
    shallow_checkpoint, hub, variables, local, tmp_path
):
    hub.add(NAME, {"README.md": b"nothing here yet"})
    hub.add(NAME, files(shallow_checkpoint), revision="v1/final")
    gguf = {"a.Q8_0.gguf": b"not a model", "a.F16.gguf": b"nor this"}
    hub.add("org/ggufs", gguf)
    named, main, several, unnamed = rdrr_each(
        ["convert", f"hf://{NAME}@v1%2Ffinal", tmp_path / "out", "--quiet"],
        ["convert", f"hf://{NAME}", tmp_path / "main", "--quiet"],
        ["convert", "hf://org/ggufs", tmp_path / "several", "--quiet"],
        ["convert", "hf://org/ggufs/a.F16.gguf", tmp_path / "one", "--quiet"],
        **variables,
    )
    assert named.code == 0, named.err
    assert files(tmp_path / "out") == files(local)
    assert "not a checkpoint that can be read" in error_line(main)
    line = error_line(several)
    assert "several GGUF files" in line
    assert "hf://org/ggufs/a.F16.gguf" in line
    assert "not a GGUF file" in error_line(unnamed)
    assert "a.Q8_0.gguf" not in hub.downloads()


def test_what_the_hub_does_not_have_is_one_line_and_a_checkpoint_is_no_package(
    shallow_checkpoint, hub_here, tmp_path
):
    hub_here.add("org/gated", files(shallow_checkpoint)).gated = True
    hub_here.add(NAME, files(shallow_checkpoint))
    table = {
        "hf://org/none": "no such repository, or a private one.*hf auth login",
        f"hf://{NAME}@v9": "no such revision",
        f"hf://{NAME}/b.gguf": "no such file in the repository",
        "hf://org/gated": "access must be granted.*HF_TOKEN",
        "hf://org": r"expected hf://org/name\[@revision\]",
        "hf://org/..": r"expected hf://org/name\[@revision\]",
        "hf://org/a--b": "not a model on the hub",
    }
    for source, words in table.items():
        done = rdrr("convert", source, tmp_path / "out", "--quiet")
        assert done.code == (2 if "not a model" in done.err else 1), source
        assert re.search(words, error_line(done)), source
    assert not (tmp_path / "out").exists()
    assert "convert it first" in error_line(rdrr("inspect", f"hf://{NAME}"))


# test_command_manners.py has the error of a hub that is not there.
@pytest.mark.thorough
def test_without_the_hub_and_a_cache_the_error_says_both(variables, tmp_path):
    dead = variables | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    [done] = rdrr_each(["convert", f"hf://{NAME}", tmp_path / "out", "--quiet"], **dead)
    assert "the hub cannot be reached and the cache does not have it" in error_line(done)


@pytest.mark.thorough
def test_packages_on_the_hub_work_like_local_ones_and_only_needed_files_are_downloaded(
    shallow_checkpoint, hub, variables, tmp_path
):
    local = tmp_path / "package"
    assert rdrr("convert", shallow_checkpoint, local, "--shard-size", "1MiB", "--quiet").code == 0
    hub.add(NAME, files(local) | {"README.md": b"card"})
    url = f"hf://{NAME}"
    valid, inspected = rdrr_each(["validate", url], ["inspect", url, "--json"], **variables)
    assert valid.code == 0, valid.err
    assert inspected.json() == rdrr("inspect", local, "--json").json()
    assert set(hub.downloads()) == {"manifest.json"}
    deep, text = rdrr_each(["validate", url, "--deep"], ["generate", url, *QUICK], **variables)
    assert deep.code == 0, deep.out
    assert text.out == rdrr("generate", local, *QUICK).out
    shards = [name for name in hub.downloads() if name.startswith("shard_")]
    assert shards == sorted(path.name for path in local.glob("shard_*"))
    assert len(shards) > 2
    del hub.requests[:]
    offline = variables | {"HF_HUB_OFFLINE": "1"}
    bare, again, wrong = rdrr_each(
        ["validate", f"{url}/manifest.json"],
        ["validate", url, "--deep"],
        ["validate", "hf://org/none"],
        **offline,
    )
    assert bare.code == 0, bare.err
    assert again.code == 0, again.err
    assert "the cache does not have it" in error_line(wrong)
    assert hub.requests == []


@pytest.mark.thorough
def test_shards_of_the_hub_are_hashed_in_its_cache(hub, variables, local, tmp_path):
    content = files(local)
    [shard] = [name for name in content if name.startswith("shard_")]
    damaged = bytearray(content[shard])
    damaged[1000] ^= 1
    hub.add(NAME, content)
    hub.add("org/other", content | {shard: bytes(damaged)})
    variables |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = [["generate", f"hf://{name}", *QUICK] for name in (NAME, "org/other")]
    good, other = rdrr_each(*words, **variables)
    assert good.code == 0, good.err
    assert "hash" in error_line(other)
    [stored] = [path for path in (tmp_path / "home").rglob("snapshots/*/shard_*")
                if path.read_bytes() == content[shard]]  # fmt: skip
    stored.resolve().write_bytes(bytes(damaged))
    [again] = rdrr_each(words[0], **variables)
    assert "hash" in error_line(again)


@pytest.mark.thorough
def test_an_adapter_on_the_hub_is_merged_and_works_offline_later(
    shallow_checkpoint, hub, variables, tmp_path, rng
):
    module = "model.layers.0.self_attn.o_proj"
    shape = json.loads((shallow_checkpoint / "config.json").read_text(encoding="utf-8"))
    tensors = adapter_tensors(rng, module, (shape["hidden_size"], shape["hidden_size"]))
    adapter = write_adapter(tmp_path / "adapter", tensors)
    hub.add("org/adapter", files(adapter) | {"README.md": b"card", "optimizer.pt": b"large"})
    local = ["convert", shallow_checkpoint, tmp_path / "local", "--quiet", "--lora", adapter]
    taken = [
        "convert",
        shallow_checkpoint,
        tmp_path / "hub",
        "--quiet",
        "--lora",
        "hf://org/adapter",
    ]
    again = [*taken[:2], tmp_path / "again", *taken[3:]]
    results = rdrr_each(local, taken, **variables)
    assert all(done.code == 0 for done in results), [done.err for done in results]
    assert hub.downloads() == ["adapter_config.json", "adapter_model.safetensors"]
    [offline] = rdrr_each(again, **variables, HF_HUB_OFFLINE="1")
    assert offline.code == 0, offline.err
    assert files(tmp_path / "hub") == files(tmp_path / "local") == files(tmp_path / "again")


@pytest.mark.thorough
def test_an_embedding_model_is_fetched_with_its_modules(
    shallow_checkpoint, hub, variables, tmp_path
):
    source, name = tmp_path / "embedding", "org/embedding"
    shutil.copytree(shallow_checkpoint, source)
    hidden = json.loads((source / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    layers = [np.random.default_rng(0).normal(0, 0.1, (48, hidden))]
    add_modules(source, hidden, "mean", layers=layers, biases=[None])
    content = {
        str(path.relative_to(source)): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file()
    }
    hub.add(name, content | {"onnx/model.safetensors": b"x", "onnx/config.json": b"{}"})
    done, offline = rdrr_each(
        ["convert", f"hf://{name}", tmp_path / "out", "--quiet"],
        ["convert", source, tmp_path / "local", "--quiet"],
        **variables,
    )
    assert done.code == 0, done.err
    assert offline.code == 0, offline.err
    assert files(tmp_path / "out") == files(tmp_path / "local")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["modelType"] == "embedding"
    fetched = [
        request for request in hub.requests if request.startswith("GET") and "/resolve/" in request
    ]
    assert any(one.endswith("/2_Dense/model.safetensors") for one in fetched)
    assert not any("onnx" in one for one in fetched)
