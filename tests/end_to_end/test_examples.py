"""Each script in examples/ runs as its docstring says, with the bundled model."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import EXAMPLE
from support.deadlines import HANGS

SCRIPTS = Path(EXAMPLE).parent
PROMPTS = ("And it came to pass", "In the beginning")
SHOWN = {
    "convert_and_validate": ("small-llama", "valid\n"),
    "generate": ("\n",),
    "chat": ("> And it came to pass\n", "> In the beginning\n"),
    "batch": ("And it came to pass|", "In the beginning|", "16 tokens, length"),
    "read_weights": ("small-llama: ", "model.norm.weight: F32", "root mean square"),
    "async_generation": PROMPTS,
    "structured_output": ("'name': ", "'age': "),
}


def arguments(name, made_package, folder):
    if name == "convert_and_validate":
        return EXAMPLE, folder / "package"
    return {
        "generate": (made_package, PROMPTS[0]),
        "read_weights": (made_package,),
        "structured_output": (made_package, PROMPTS[0]),
    }.get(name, (made_package, *PROMPTS))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_runs_and_shows_what_it_promises(name, made_package, tmp_path):
    words = [str(argument) for argument in arguments(name, made_package, tmp_path)]
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"{name}.py", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in SHOWN[name]), done.stdout
    assert "Traceback" not in done.stderr


def test_every_example_is_run_here_and_says_how_to_run_it():
    scripts = {path.stem: path for path in SCRIPTS.glob("*.py")}
    assert set(scripts) == set(SHOWN)
    for name, path in scripts.items():
        documentation = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert f"python examples/{name}.py " in documentation
