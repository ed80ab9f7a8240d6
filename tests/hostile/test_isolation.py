"""The suite passes on a machine whose user has settings of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.commands import ROOT, environment
from support.deadlines import HANGS
from support.isolation import isolate

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_TOKEN": "the user's",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "HUGGINGFACE_HUB_CACHE": "/nowhere",
    "TRANSFORMERS_OFFLINE": "1",
    "SOURCE_DATE_EPOCH": "no time",
    "XDG_CONFIG_HOME": "/theirs",
    "XDG_CACHE_HOME": "/cached",
    "HF_HOME": "/theirs",
}


def test_variables_of_the_user_are_removed_and_others_stay():
    variables = {**SETTINGS, "PATH": "/bin", "HFX": "1", "MESA_SHADER_CACHE_DIR": "/shaders"}
    isolate(variables, "/home")
    assert variables == {
        "PATH": "/bin",
        "HFX": "1",
        "XDG_CONFIG_HOME": "/home/config",
        "XDG_CACHE_HOME": "/home/cache",
        "HF_HOME": "/home/hub",
        "MESA_SHADER_CACHE_DIR": "/shaders",
        "__GL_SHADER_DISK_CACHE_PATH": "/cached",
    }


def test_this_run_is_isolated():
    # Our own command line sets the second one if another test in this process ran it.
    ours = {"HF_HOME", "HF_HUB_DISABLE_PROGRESS_BARS"}
    assert {name for name in os.environ if name.startswith("HF_")} <= ours
    assert "rdrr-tests" in os.environ["XDG_CONFIG_HOME"]
    assert "rdrr-tests" in os.environ["XDG_CACHE_HOME"]


@pytest.mark.thorough
def test_tests_of_the_hub_pass_with_any_settings_of_the_user(tmp_path):
    words = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 't'}"]
    done = subprocess.run(
        [sys.executable, *words, "tests/end_to_end/test_hub.py", "-k", "does_not_have"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(**SETTINGS),
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
