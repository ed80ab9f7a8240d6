"""Every package that `make` installs is pinned by version and hash, the build backend included."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.commands import ROOT

HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> Mapping[str, str]:
    """Return the versions that one of the two files pins, by package."""
    matches = re.findall(
        r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len({canonical(package) for package, _ in matches}) == len(matches)
    return {canonical(package): version for package, version in matches}


def test_each_pin_has_hashes_and_the_same_version_in_both_files():
    constraints, hashed = pins("constraints.txt"), pins("hashes.txt")
    assert len(constraints) > 100
    assert constraints.items() <= hashed.items()
    entries = (ROOT / "hashes.txt").read_text(encoding="utf-8").split("==")[1:]
    assert all(HASH.search(entry) for entry in entries)


def test_every_requirement_that_make_installs_has_a_pin():
    extras = ["torch", "remote", "ray", "grammar"]
    script = [sys.executable, ROOT / ".ci" / "requirements"]
    lines = [
        line
        for arguments in ([], extras)
        for line in subprocess.check_output([*script, *arguments], text=True).splitlines()
    ]
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "dependency-groups"
    ]
    lines += groups["dev"] + groups["docs"]
    names = {canonical(re.split(r"[\[<>=!~;]", line)[0]) for line in lines}
    assert len(names) > 40
    assert names <= pins("constraints.txt").keys()


def test_no_file_of_pins_names_an_index():
    for name in ("constraints.txt", "hashes.txt"):
        assert "//" not in (ROOT / name).read_text(encoding="utf-8")


def test_the_build_backend_is_pinned_to_the_version_that_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (backend,) = project["build-system"]["requires"]
    name, _, version = backend.partition("==")
    assert pins("constraints.txt")[name] == version


def test_make_installs_the_project_itself_last_and_without_anything_else():
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = re.findall(r"(?:PIP\)|INSTALL\)) (.*)", recipes)
    (own,) = [words for words in installs if words.endswith("--editable .")]
    assert "--no-deps --no-build-isolation" in own
    assert "--require-hashes" in recipes
    block = recipes[: recipes.index(own)].rpartition("\n\n")[2]
    assert "$(INSTALL)" in block  # what comes before it
    assert "$(INSTALL)" not in recipes[recipes.index(own) :].partition("\n\n")[0]


@pytest.mark.parametrize(
    ("words", "hashes", "refused"),
    [((), "yes", True), ((), "no", False), (("https://torch.example/simple",), "yes", False)],
)
def test_only_torch_of_a_named_index_or_without_hashes_escapes_the_hashes(
    tmp_path, words, hashes, refused
):
    """A stand-in for Python writes a wheel of another hash where pip would download one."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\n'
        'while [ "$1" ]; do [ "$1" = --dest ] && echo other > "$2/torch-1.whl"; shift; done\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci" / "torch", python, *words],
        env=os.environ | {"HASHES": hashes},
        capture_output=True,
        text=True,
        check=False,
    )
    download, *install = Path(f"{python}.log").read_text(encoding="utf-8").splitlines()
    assert (done.returncode != 0, "does not list" in done.stderr) == (refused, refused)
    assert bool(install) != refused
    assert ("--index-url https://torch.example/simple" in download) == bool(words)


def write_wheel(folder: Path, name: str, requires: str = "") -> str:
    """Write an empty wheel of version 1, and return its SHA-256 hash."""
    path = folder / f"{name}-1-py3-none-any.whl"
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
                         + (f"Requires-Dist: {requires}\n" if requires else ""))  # fmt: skip
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (None, "Would install"),
        pytest.param("first", "DO NOT MATCH", marks=pytest.mark.thorough),
        ("second", "DO NOT MATCH"),
    ],
)
def test_pip_compares_dependencies_with_the_hashes_of_constraints(tmp_path, spoil, message):
    hashes = {
        "rdrr-first": write_wheel(tmp_path, "rdrr_first", "rdrr-second>=1"),
        "rdrr-second": write_wheel(tmp_path, "rdrr_second"),
    }
    if spoil:
        hashes[f"rdrr-{spoil}"] = "0" * 64
    pinned = tmp_path / "hashes.txt"
    pinned.write_text(
        "".join(f"{requirement}==1 --hash=sha256:{h}\n" for requirement, h in hashes.items()),
        encoding="utf-8",
    )
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("rdrr-first\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--find-links",
         str(tmp_path), "--require-hashes", "-c", str(pinned), "-r", str(wanted)],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == (spoil is None)
    assert message in done.stdout + done.stderr
