"""Links in a package may lead to other files of it, and out of it only if the user allows it."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import rdrr
from rdrr import _web_targets
from rdrr.cli import app
from rdrr_format.errors import ManifestError, StoreError
from rdrr_format.file_names import check_link
from rdrr_format.stores import LocalStore
from support.checkpoints import write_tokenizer
from support.commands import error_line
from support.commands import rdrr as run
from support.manifests import write_package
from support.safetensor_files import llama_tensors, write_llama
from support.seeds import generator_of
from typer.main import get_group

URL = "hf://org/name"
SECRET = b"not for everybody"


@pytest.fixture
def folder(tmp_path: Path, rng) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, rng)
    assert rdrr.validate(folder, deep=True).ok()  # the control
    return folder


def link_out(path: Path) -> Path:
    """Move a file out of the folder and replace it by a link to it."""
    target = path.parents[1] / f"moved-{path.name}"
    path.rename(target)
    path.symlink_to(target)
    return target


@pytest.mark.parametrize("name", ["shard_00000.bin", "tokenizer.json"])
def test_a_link_out_of_a_package_is_read_only_when_asked_for(folder, name):
    link_out(folder / name)
    report = rdrr.validate(folder)
    assert {fault.rule for fault in report.faults} <= {"shard-file", "tokenizer-file"}
    assert "leads out of its folder" in report.errors[0].line()
    with pytest.raises(ManifestError, match="leads out of its folder"):
        rdrr.open_package(folder)
    assert rdrr.validate(folder, deep=True, follow_links=True).ok()
    with rdrr.open_package(folder, follow_links=True) as package:
        assert package.read("model.norm.weight").size
        assert package.tokenizer_bytes()
        assert package.tokenizer_path
    done = run("validate", folder)
    assert done.code == 1
    assert "leads out of its folder" in done.out
    assert run("validate", folder, "--deep", "--follow-links").code == 0


def test_a_manifest_may_not_be_a_link_out_either_unless_it_is_named_itself(folder):
    target = link_out(folder / "manifest.json")
    with pytest.raises(StoreError, match="leads out of its folder"):
        rdrr.open_package(folder)
    assert rdrr.open_package(folder, follow_links=True)
    target.rename(folder / "real.json")
    (folder / "manifest.json").unlink()
    named = folder.parent / "elsewhere.json"
    named.symlink_to(folder / "real.json")
    assert rdrr.validate(named).ok()


@pytest.mark.parametrize("target", ["shard_00001.bin", "./shard_00001.bin", "sub/shard"])
def test_a_link_to_a_file_of_the_package_is_followed(folder, target):
    (folder / "sub").mkdir()
    (folder / "shard_00001.bin").rename(folder / "sub" / "shard")
    if target != "sub/shard":
        (folder / "shard_00001.bin").symlink_to("sub/shard")
        (folder / "again").symlink_to(target)
    else:
        (folder / "shard_00001.bin").symlink_to(target)
    assert rdrr.validate(folder, deep=True).ok()


@pytest.mark.parametrize("target", ["../moved", "sub/../../moved", "{root}/moved", "chain"])
def test_every_kind_of_link_out_of_the_package_is_found(folder, target):
    (folder / "sub").mkdir()
    moved = folder.parent / "moved"
    (folder / "shard_00001.bin").rename(moved)
    (folder / "chain").symlink_to(moved)
    (folder / "shard_00001.bin").symlink_to(target.format(root=folder.parent))
    assert not rdrr.validate(folder).ok()
    assert rdrr.validate(folder, follow_links=True).ok()


def test_a_package_folder_may_itself_be_a_link(folder, tmp_path):
    named = tmp_path / "named"
    named.symlink_to(folder)
    assert rdrr.validate(named, deep=True).ok()


def hub_cache(folder: Path, root: Path) -> Path:
    """Lay the folder out as the hub's client caches it: a snapshot of links into blobs."""
    home = root / "models--org--name"
    snapshot, blobs = home / "snapshots" / "0123abcd", home / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.copy(path, blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    return snapshot


def test_a_folder_of_the_hub_s_cache_is_read_without_asking(folder, tmp_path):
    snapshot = hub_cache(folder, tmp_path)
    assert rdrr.validate(snapshot, deep=True).ok()
    other = tmp_path / "models--org--other"
    other.mkdir()
    shutil.move(tmp_path / "models--org--name" / "blobs" / "0", other / "0")
    (snapshot / "manifest.json").unlink()
    (snapshot / "manifest.json").symlink_to(other / "0")
    with pytest.raises(StoreError, match="leads out of its folder"):
        rdrr.open_package(snapshot)


def test_push_uploads_nothing_from_outside_the_package(folder, tmp_path):
    (tmp_path / "secret").write_bytes(SECRET)
    assert "secret" not in run("push", folder, URL, "--dry-run", "--json").json()["files"]
    (folder / "notes").symlink_to(tmp_path / "secret")
    done = run("push", folder, URL, "--dry-run")
    assert "notes: a symbolic link leads out of its folder" in error_line(done, 1)
    asked = run("push", folder, URL, "--dry-run", "--json", "--follow-links")
    assert asked.json()["files"]["notes"] == len(SECRET)


def test_push_uploads_no_card_from_outside_the_package(folder, tmp_path):
    (tmp_path / "secret").write_bytes(SECRET)
    (folder / "README.md").symlink_to(tmp_path / "secret")
    done = run("push", folder, URL, "--dry-run")
    assert done.code == 1
    assert SECRET.decode() not in done.out + done.err
    assert SECRET.decode() in run("push", folder, URL, "--dry-run", "--follow-links").out


def test_push_reads_no_file_that_never_ends(folder):
    os.mkfifo(folder / "notes")
    assert "notes" not in run("push", folder, URL, "--dry-run", "--json").json()["files"]


def test_a_link_that_leads_nowhere_or_in_a_circle_is_an_error(folder):
    (folder / "shard_00001.bin").unlink()
    for target in ("absent", "shard_00001.bin"):
        (folder / "shard_00001.bin").unlink(missing_ok=True)
        (folder / "shard_00001.bin").symlink_to(target)
        assert [fault.rule for fault in rdrr.validate(folder).faults] == ["shard-file"]


@pytest.fixture(scope="module")
def original(request, tmp_path_factory) -> Path:
    """Convert a package that can be run, next to a text file."""
    root = tmp_path_factory.mktemp("original")
    source = write_llama(root / "source", llama_tensors(generator_of(request)))
    write_tokenizer(source)
    rdrr.convert(source, root / "package")
    (root / "text").write_text("And it came to pass in those days. " * 8, encoding="utf-8")
    return root


@pytest.fixture
def converted(original, tmp_path) -> Path:
    return shutil.copytree(original, tmp_path / "made") / "package"


SHARD, REPORT = "shard_00000.bin", "conversion-report.json"
SHORT = ("--prompt-tokens", "4", "--tokens", "2")
COMMANDS = {
    "bench": (SHARD, ("bench", "{package}", *SHORT, "--repeat", "1")),
    "diff, first": (SHARD, ("diff", "{package}", "{original}")),
    "diff, second": (SHARD, ("diff", "{original}", "{package}")),
    "explain": (SHARD, ("explain", "{package}")),
    "export": (SHARD, ("export", "{package}", "{out}")),
    "export to a GGUF": (SHARD, ("export", "{package}", "{out}", "--to", "gguf")),
    "export-program": (SHARD, ("export-program", "{package}", "{out}")),
    "web": (SHARD, ("web", "{package}", "{out}")),
    "generate": (SHARD, ("generate", "{package}", "--prompt", "In", "--max-tokens", "1",
                         "--backend", "cpu")),
    "generate with a draft": (
        SHARD,
        ("generate", "{original}", "--prompt", "In", "--max-tokens", "1", "--backend", "cpu",
         "--decode", "speculative", "--draft", "{package}"),
    ),
    "hints": ("manifest.json", ("hints", "{package}")),
    "hints that change": ("manifest.json", ("hints", "{package}", "computePrecision=f32")),
    "imatrix": (
        SHARD,
        ("imatrix", "{package}", "--text", "{text}", "--out", "{out}", "--window", "16",
         "--tokens", "32"),
    ),
    "inspect": (SHARD, ("inspect", "{package}")),
    "perplexity": (
        SHARD,
        ("perplexity", "{package}", "--text", "{text}", "--window", "16", "--tokens", "32",
         "--backend", "cpu"),
    ),
    "profile": (SHARD, ("profile", "{package}", *SHORT)),
    "report": (REPORT, ("report", "{package}")),
}  # fmt: skip


TIMING = {"bench", "profile"}
"""Commands that compile many shaders, and open a package as `generate` does."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name in TIMING else ()) for name in COMMANDS],
)
def test_every_command_follows_links_only_when_asked_to(converted, original, name, monkeypatch):
    one_browser = dict([*_web_targets.TARGETS.items()][:1])  # each takes a while
    monkeypatch.setattr(_web_targets, "TARGETS", one_browser)
    file, words = COMMANDS[name]
    places = {
        "package": converted,
        "original": original / "package",
        "text": original / "text",
        "out": converted.parent / "out",
    }
    command = [word.format(**places) for word in words]
    target = link_out(converted / file)
    before = target.read_bytes()
    done = run(*command)
    assert "leads out of its folder" in error_line(done, 1)
    assert target.read_bytes() == before
    assert not places["out"].exists()
    run(*command, "--follow-links", code=0)
    assert (converted / file).is_symlink()
    assert (target.read_bytes() != before) == (name == "hints that change")
    assert places["out"].exists() == ("{out}" in words)


def test_every_command_that_opens_a_package_or_a_checkpoint_has_the_flag():
    """Commands not run above take too long, wait for a person, or have tests of their own."""
    commands = get_group(app.build_app(app.COMMANDS)).commands
    flags = {name: {flag for param in command.params for flag in param.opts}
             for name, command in commands.items()}  # fmt: skip
    having = {name for name, options in flags.items() if "--follow-links" in options}
    without = {"architectures", "devices", "help", "list", "pull", "rm", "schema"}
    assert having == set(commands) - without
    run_above = {words[0] for _, words in COMMANDS.values()}
    others = {"chat", "classify", "convert", "embed", "push", "rank", "serve", "tune", "validate"}
    assert having == run_above | others


def test_a_store_opened_by_itself_follows_links_only_when_asked_to(tmp_path):
    (tmp_path / "out").write_bytes(SECRET)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").symlink_to("../out")
    with pytest.raises(StoreError, match="leads out"):
        LocalStore(tmp_path / "in").read("a")
    assert LocalStore(tmp_path / "in", follow_links=True).read("a").tobytes() == SECRET


@pytest.mark.parametrize(
    ("name", "leads_out"),
    [
        ("file", False),
        ("absent", False),
        ("inner", False),
        ("inner folder/file", False),
        ("outer", True),
        ("outer folder", True),
        ("outer folder/file", True),
        ("..", True),
        ("inner folder/../../file", True),
    ],
)
def test_a_path_is_refused_if_any_part_of_it_leads_out(tmp_path, name, leads_out):
    folder = tmp_path / "folder"
    (folder / "inner folder").mkdir(parents=True)
    for place in (tmp_path, folder, folder / "inner folder"):
        (place / "file").write_text("content", encoding="utf-8")
    for link, target in {"inner": "file", "outer": "../file", "outer folder": ".."}.items():
        (folder / link).symlink_to(target)
    with pytest.raises(StoreError) if leads_out else nullcontext():
        check_link(folder / name, folder)
