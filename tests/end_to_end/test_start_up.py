"""The commands start quickly: no heavy package is imported before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.commands import environment

HEAVY = (
    "torch",
    "wgpu",
    "numba",
    "tokenizers",
    "transformers",
    "huggingface_hub",
    "fsspec",
    "zstandard",
    "blake3",
)


def _modules_after(code: str) -> list[str]:
    report = "import sys, json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def _command(*words: str) -> str:
    return (
        "from rdrr.cli.app import COMMANDS, run\n"
        f"code = run(COMMANDS, {list(words)!r}, program='rdrr')\n"
        "assert code in (0, 1), code"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import rdrr",
        _command("--help"),
        pytest.param(_command("help"), marks=pytest.mark.thorough),
        _command("generate", "-h"),
        pytest.param(_command("-v", "help", "convert"), marks=pytest.mark.thorough),
    ],
)
def test_help_imports_nothing_heavy(code):
    assert not {*HEAVY, "numpy"} & set(_modules_after(code))


def test_the_list_of_modules_shows_heavy_ones_once_they_are_imported():
    assert {"blake3", "zstandard"} <= set(_modules_after("import blake3, zstandard"))


def test_validating_a_package_imports_nothing_heavy(shallow_package):
    loaded = _modules_after(_command("validate", str(shallow_package), "--json"))
    assert "rdrr_manifests" in loaded
    assert not set(HEAVY) & set(loaded)


def test_no_option_has_its_own_name_as_its_placeholder():
    # Some versions of typer (0.27) would spell the option in upper case, like its placeholder.
    from rdrr.cli import app
    from typer.main import get_group

    group = get_group(app.build_app(app.COMMANDS))
    options = [(one, name) for name, one in group.commands.items()]
    wrong = [
        (name, param.name)
        for command, name in options
        for param in command.params
        if param.opts[0].startswith("-") and param.metavar == str(param.name).upper()
    ]
    assert sum(len(command.params) for command, _ in options) > 50
    assert not wrong
