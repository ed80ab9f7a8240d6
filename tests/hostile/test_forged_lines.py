"""Names that hold line ends, escape sequences and markup: no output has a line of their writing."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
import rdrr as front
from rdrr import _web_targets
from rdrr.cli._progress import progress_bar
from rdrr.cli.app import COMMANDS
from rdrr.difference import compare_packages
from rdrr_converter.progress import ProgressEvent
from rdrr_manifests.package import open_package
from support.checkpoints import make_checkpoint
from support.commands import rdrr as run
from support.seeds import generator_of
from support.tiny_models import TINY_MODELS

FORGED = "FORGED"
NAME = (
    f"x\n{FORGED} valid\r{FORGED}\x0b{FORGED}\x85{FORGED}\u2028{FORGED}\x1b[2J\x1b]0;t\x07\x9b1A"
    f"\u202e\u2066[/red][bold]</title><script>{FORGED}()</script>'\"&\t|`"
)
"""Begins a line in each way that a terminal or Python knows, sends commands, and is markup."""

COMMANDS_OF_PACKAGES = {
    "validate": [(), ("--deep", "--json")],
    "inspect": [("--tensors",), ("--tensors", "--json")],
    "hints": [(), ("--json",)],
    "explain": [()],
    "report": [(), ("--json",)],
    "push": [("hf://org/name", "--dry-run")],
    "diff": [("PLAIN", "--all")],
    "export": [("OUT",), ("OUT", "--json")],
    "export-program": [("OUT",)],
    "web": [("OUT",), ("OUT", "--json")],
    # What a model writes goes to a pipe as it is, so this one writes letters.
    "generate": [("-p", "Who", "--max-tokens", 2, "--backend", "cpu", "--logit-bias", "LETTER")],
    "chat": [("--max-tokens", 2, "--backend", "cpu", "--logit-bias", "LETTER")],
    "perplexity": [("--text", "TEXT", "--window", 32, "--backend", "cpu")],
    "embed": [("text", "--backend", "cpu")],
    "classify": [("text", "--backend", "cpu")],
    "rank": [("query", "text", "--backend", "cpu")],
}
"""Further words of each command that prints what a package states."""

MEASURING = {"tune", "bench", "profile", "imatrix"}
CACHE = {"list", "pull", "rm"}
OTHERS = {"schema", "architectures", "devices", "convert", "serve"} | MEASURING | CACHE
"""Commands that print nothing of a package: text of rdrr, of the adapter, measured numbers, names
of repositories, whose characters the hub bounds. `serve` prints a name by the same function as the
others, and then runs until it is stopped."""


def assert_no_forged_line(text: str) -> None:
    """Fail if a character controls the terminal, or a line begins with what a name wants it to."""
    bad = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert bad <= {"\n"}, ascii(bad)
    assert not [line for line in text.splitlines() if line.strip().startswith(FORGED)]


def assert_is_escaped_html(page: str) -> None:
    assert_no_forged_line(page)
    assert "<script" not in page


@pytest.fixture(scope="module")
def plain(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    source = make_checkpoint(
        TINY_MODELS[0], folder / "source", generator_of(request), num_hidden_layers=1
    )
    settings = source / "tokenizer_config.json"
    stated = json.loads(settings.read_text("utf-8"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    settings.write_text(json.dumps({**stated, "chat_template": template}), "utf-8")
    front.convert(source, folder / "package")
    return folder / "package"


@pytest.fixture(scope="module")
def hostile(plain, tmp_path_factory) -> Path:
    """Return a package that can be run, in which the texts that a writer may choose are hostile."""
    folder = tmp_path_factory.mktemp("hostile") / "package"
    shutil.copytree(plain, folder)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    tensors, (shard, *_) = manifest["tensors"], manifest["shards"]
    norm = next(entry for name, entry in tensors.items() if name.endswith("norm.weight"))
    data = (folder / shard["filename"]).read_bytes()
    data += bytes(-len(data) % 4096)
    tensors[NAME] = {**norm, "offset": len(data)}
    data += data[norm["offset"] :][: norm["size"]]
    (folder / shard["filename"]).write_bytes(data)
    manifest["totalSize"] += len(data) - shard["size"]
    shard |= {"size": len(data), "hash": hashlib.sha256(data).hexdigest()}
    manifest["quantization"] = NAME
    manifest["optimizations"] = {"kernelHints": {NAME: NAME, "tunedDevice": NAME}}
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    report = json.loads((folder / "conversion-report.json").read_text("utf-8"))
    report["modelId"] = report["architecture"] = report["sourceFormat"] = NAME
    report["notes"] = [NAME]
    report["tensors"][0] |= {"name": NAME, "why": NAME, "relativeRmse": 0.5}
    (folder / "conversion-report.json").write_text(json.dumps(report), "utf-8")
    return folder


@pytest.fixture(scope="module")
def faulty(hostile, tmp_path_factory) -> Path:
    """Return a package that breaks rules in the names too that rules restrict."""
    folder = tmp_path_factory.mktemp("faulty") / "package"
    shutil.copytree(hostile, folder)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    manifest["modelId"] = manifest["modelType"] = NAME
    manifest["tensors"][NAME] |= {"dtype": NAME, "role": NAME, "group": NAME}
    manifest["shards"][0]["filename"] = NAME
    manifest[NAME] = NAME
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def for_one_browser(monkeypatch):
    """Let `rdrr web` write one program, since each takes a while."""
    name, capabilities = next(iter(_web_targets.TARGETS.items()))
    monkeypatch.setattr(_web_targets, "TARGETS", {name: capabilities})


@pytest.mark.parametrize("command", COMMANDS_OF_PACKAGES)
def test_no_name_in_a_package_forges_a_line_of_output(
    command, hostile, faulty, plain, tmp_path, monkeypatch
):
    for_one_browser(monkeypatch)
    (tmp_path / "text").write_text("Who art thou, and who is he that comes? " * 8, "utf-8")
    tokenizer = json.loads((plain / "tokenizer.json").read_text("utf-8"))
    words = {
        "PLAIN": plain,
        "LETTER": f"{tokenizer['model']['vocab']['a']}=10000",
        "OUT": tmp_path / "out",
        "TEXT": tmp_path / "text",
        "PROGRAM": tmp_path / "p.json",
    }
    for package in (hostile, faulty):
        for more in COMMANDS_OF_PACKAGES[command]:
            done = run(command, package, *(words.get(word, word) for word in more), stdin="Hi\n")
            assert_no_forged_line(done.out)
            assert_no_forged_line(done.err)
            assert "Traceback" not in done.err


def test_the_commands_that_show_names_show_them_escaped(hostile):
    for words in (("inspect", "--tensors"), ("report",), ("hints",)):
        done = run(words[0], hostile, *words[1:], code=0)
        assert f"\\n{FORGED} valid" in done.out


def test_every_command_that_prints_what_a_package_states_is_tried():
    assert {command.name for command in COMMANDS} - OTHERS == set(COMMANDS_OF_PACKAGES)


def test_the_page_of_a_report_holds_no_markup_and_no_characters_of_a_name(hostile, tmp_path):
    assert run("report", hostile, "--html", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert FORGED in page
    assert_is_escaped_html(page.replace("\n\n", "\n"))


def test_what_the_api_returns_shows_names_escaped_in_one_line_and_in_notebooks(hostile, plain):
    with open_package(hostile) as package, open_package(plain) as other:
        weights = front.open(hostile)
        shown = [
            package, package.manifest, weights,
            compare_packages(package, other), front.validate(hostile),
        ]  # fmt: skip
        for value in shown:
            assert repr(value).isprintable()
            assert_is_escaped_html(value._repr_html_())
        weights.close()


def test_a_card_of_the_hub_has_no_markup_of_a_name(hostile):
    card = front.push(hostile, "hf://org/name", dry_run=True).card
    text = card.split("---\n", 2)[2]  # behind the metadata, which is YAML
    assert "<script" not in text
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]


def test_the_bar_of_a_conversion_shows_a_name_as_it_is_not_as_markup(monkeypatch):
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", out)
    with progress_bar() as show:
        assert show is not None
        show(ProgressEvent("write", NAME, 1, 2))
    assert FORGED not in "".join(re.findall(rf"[\r\n]\s*{FORGED}", out.getvalue()))
