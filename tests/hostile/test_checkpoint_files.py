"""Every file of a checkpoint is a regular file, and the small ones do not lie outside of it."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import rdrr
from rdrr_format.errors import RdrrError
from support.adapters import adapter_tensors, write_adapter
from support.checkpoints import write_tokenizer
from support.commands import error_line
from support.commands import rdrr as run
from support.safetensor_files import llama_tensors, write_llama
from support.seeds import generator_of
from support.sentence_checkpoints import add_modules

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
JSON_FILES = ("generation_config.json", "special_tokens_map.json", "added_tokens.json")
INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00002.safetensors"

SMALL = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    *JSON_FILES,
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/rag.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    INDEX,
    "adapter/adapter_config.json",
    "adapter/tokenizer_config.json",
)
"""The small files of a checkpoint and its adapter; a test makes each of them something else."""

WITHOUT = {
    "chat_template.json": ("chat_template.jinja", "additional_chat_templates/rag.jinja"),
    "vocab.json": ("tokenizer.json", "tokenizer.model"),
    "merges.txt": ("tokenizer.json", "tokenizer.model"),
    "vocab.txt": ("tokenizer.json", "tokenizer.model", "vocab.json"),
}
"""Files in whose presence one is not read."""

WEIGHTS = (SHARD, "adapter/adapter_model.safetensors")


@pytest.fixture(scope="module")
def original(request, tmp_path_factory) -> Path:
    """Write a checkpoint that has every file, with an adapter in a folder of it."""
    rng = generator_of(request)
    root = tmp_path_factory.mktemp("original") / "model"
    write_llama(root, llama_tensors(rng, **SIZES), shards=2, **SIZES)
    write_tokenizer(root)
    add_modules(root, 64, "mean")
    module = "model.layers.0.mlp.down_proj"
    adapter = write_adapter(root / "adapter", adapter_tensors(rng, module, (64, 96)))
    for name in JSON_FILES:
        (root / name).write_text("{}", encoding="utf-8")
    settings = json.loads((root / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "GPT2Tokenizer"
    for folder in (root, adapter):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = json.loads((root / "tokenizer.json").read_text(encoding="utf-8"))
    (root / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]), encoding="utf-8")
    (root / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (root / "vocab.txt").write_text("[UNK]\n", encoding="utf-8")
    (root / "tokenizer.model").write_bytes(b"pieces")
    (root / "additional_chat_templates").mkdir()
    for name in ("chat_template.jinja", "additional_chat_templates/rag.jinja"):
        (root / name).write_text("{{ messages[0].content }}", encoding="utf-8")
    (root / "chat_template.json").write_text('{"chat_template": "x"}', encoding="utf-8")
    convert(root, "adapter/")  # the control
    return root


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


def convert(folder: Path, name: str = "", **options: bool) -> Path:
    """Convert a checkpoint, with its adapter if a file of that is named."""
    out, adapter = folder.parent / "out", folder / "adapter"
    adapted = name.startswith("adapter/")
    rdrr.convert(folder, out, lora=adapter if adapted else None, workers=1, **options)
    return out


def without(folder: Path, name: str) -> Path:
    """Remove a file, and those in whose presence it is not read, and return its path."""
    for other in (name, *WITHOUT.get(name, ())):
        (folder / other).unlink()
    return folder / name


@pytest.mark.parametrize("name", [*SMALL, *WEIGHTS])
def test_a_pipe_in_place_of_any_file_is_refused_by_name(folder, name):
    os.mkfifo(without(folder, name))
    with pytest.raises(RdrrError, match=rf"{name}: cannot be read \(found not a regular file\)"):
        convert(folder, name)
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("name", ["tokenizer_config.json", SHARD])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Path.mkdir, "Is a directory"),
        (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    ],
    ids=["folder", "socket", "device", "circle"],
)
def test_nothing_but_a_regular_file_is_read(folder, name, make, words):
    make(without(folder, name))
    with pytest.raises(RdrrError, match=rf"{name}: cannot be read \(found {words}\)"):
        convert(folder)


@pytest.mark.parametrize("name", SMALL)
def test_a_small_file_is_read_through_a_link_out_only_when_asked_for(folder, name):
    target = folder.parent / "moved"
    shutil.copy(folder / name, target)
    without(folder, name).symlink_to(target)
    with pytest.raises(RdrrError, match=rf"{name}: a symbolic link leads out of its folder"):
        convert(folder, name)
    assert not (folder.parent / "out").exists()
    assert convert(folder, name, follow_links=True)


def test_the_command_has_the_flag(folder):
    (folder / "chat_template.jinja").rename(folder.parent / "secret")
    (folder / "chat_template.jinja").symlink_to("../secret")
    words = ("convert", folder, folder.parent / "out")
    assert "or follow links with --follow-links" in error_line(run(*words))
    assert run(*words, "--follow-links").code == 0


@pytest.mark.parametrize("name", WEIGHTS)
def test_links_to_weights_are_followed(folder, name):
    target = folder.parent / "weights"
    (folder / name).rename(target)
    (folder / name).symlink_to(target)
    assert convert(folder, name)


def test_a_folder_in_a_checkpoint_does_not_lead_out_either(folder):
    shutil.move(folder / "additional_chat_templates", folder.parent / "moved")
    (folder / "additional_chat_templates").symlink_to("../moved")
    with pytest.raises(RdrrError, match=r"rag\.jinja: a symbolic link leads out"):
        convert(folder)
    (folder / "additional_chat_templates").unlink()
    shutil.move(folder.parent / "moved", folder / "inside")
    (folder / "additional_chat_templates").symlink_to("inside")
    assert convert(folder)


def test_a_folder_of_the_hub_s_cache_is_converted_without_asking(folder, tmp_path):
    home = tmp_path / "models--org--name"
    snapshot = home / "snapshots" / "0123abcd"
    (home / "blobs").mkdir(parents=True)
    for number, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob = shutil.copy(path, home / "blobs" / str(number))
        link.symlink_to(os.path.relpath(blob, link.parent))
    assert convert(snapshot)
    (tmp_path / "secret").write_text("{}", encoding="utf-8")
    (snapshot / "generation_config.json").unlink()
    (snapshot / "generation_config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(RdrrError, match=r"generation_config\.json: a symbolic link leads out"):
        convert(snapshot, overwrite=True)
