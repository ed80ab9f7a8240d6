"""The surroundings of a command: closed and full streams, Ctrl-C, a narrow terminal."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, IncompleteRead

import pytest
from rdrr.cli._console import table
from rich.console import Console
from support.commands import environment, rdrr
from support.deadlines import HANGS

MAIN = "from rdrr.cli import main; main()"
INTERRUPTED = 130


def start(*words, code=MAIN, shell=""):
    """Start a command in a process of its own; `shell` holds redirections."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(
        ["sh", "-c", f'exec "$@" {shell}', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        # Processes that a shell starts in the background, as perhaps this test, ignore SIGINT.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def ended(process):
    """Return the exit code, stdout and stderr of a process that has ended."""
    out, err = process.communicate(timeout=HANGS)
    return process.returncode, out, err


def test_a_closed_stream_is_treated_as_an_empty_one(shallow_package):
    shown = rdrr("inspect", shallow_package)
    assert ended(start("inspect", shallow_package, shell="2>&- <&-")) == (0, shown.out, "")
    assert ended(start("inspect", shallow_package / "absent", shell=">&- 2>&-")) == (1, "", "")


@pytest.mark.thorough
def test_a_stream_that_alone_is_closed_is_treated_as_an_empty_one(shallow_package):
    assert ended(start("inspect", shallow_package, shell=">&-")) == (0, "", "")
    words = ("generate", shallow_package, "--prompt", "x", "--json-schema", "-")
    assert ended(start(*words, shell="<&-")) == (2, "", rdrr(*words, stdin="").err)


def test_ctrl_c_ends_a_conversion_in_one_line_and_leaves_nothing(shallow_checkpoint, tmp_path):
    slowly = (
        "import time\nfrom rdrr_format.shard_writer import ShardWriter\n"
        "write = ShardWriter.write\n"
        "ShardWriter.write = lambda *given: time.sleep(0.5) or write(*given)\n"
    )
    process = start("convert", shallow_checkpoint, tmp_path / "out", code=slowly + MAIN)
    while not list(tmp_path.glob(".out.partial/package/*")) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (INTERRUPTED, "", "stopped\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("presses", "is_whole"), [(1, True), (2, False)])
def test_ctrl_c_lets_the_texts_of_a_server_end_and_again_cuts_them_off(
    shallow_package, presses, is_whole
):
    # Slowly enough that the text goes on when the keys are pressed.
    slowly = (
        "import time\nfrom rdrr.serve.lanes import Lanes\nstep = Lanes.step\n"
        "Lanes.step = lambda lanes: time.sleep(0.05) or step(lanes)\n"
    )
    options = ("--port", 0, "--backend", "cpu", "--context", 320)
    process = start("serve", shallow_package, *options, code=slowly + MAIN)
    said = next(line for line in process.stderr if "served at" in line)
    address = said.split("//")[1].split("/")[0]
    with closing(HTTPConnection(address, timeout=HANGS)) as connection:
        asked = {"prompt": "In the beginning", "max_tokens": 100, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(asked))
        response = connection.getresponse()
        text = response.readline()
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        with suppress(IncompleteRead):
            text += response.read()
    assert (b"[DONE]" in text) == is_whole
    assert ended(process) == (INTERRUPTED, "", "stopped\n")


@pytest.mark.cover
@pytest.mark.parametrize("entry", ["main", "convert_main"])
@pytest.mark.parametrize(("pressed", "code"), [(True, INTERRUPTED), (False, 0)])
def test_ctrl_c_before_the_command_has_begun(entry, pressed, code):
    while_importing = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'typer' and {pressed}: raise KeyboardInterrupt\n"
        f"sys.meta_path.insert(0, Finder())\nfrom rdrr.cli import {entry}; {entry}()"
    )
    exit_code, out, err = ended(start("--help", code=while_importing))
    assert (exit_code, bool(out), err) == (code, not pressed, "")


@pytest.mark.parametrize("width", [200, 60, 40])
def test_a_table_is_folded_in_a_narrow_terminal_and_loses_nothing(width):
    rows = [
        ("model.layers.3.self_attn.v_proj.weight", "Q4_K row", "7.31 %", "row 4, block 17"),
        ("model.embed_tokens.weight", "Q6_K row", "12.86 %", "largest weight of its block"),
    ]
    names = ("tensors that lost most", "stored as", "error", "at")
    out = io.StringIO()
    Console(file=out, width=width).print(table(names, rows, right=("error",)))
    shown = out.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= width
    wanted = "".join("".join(row) for row in (names, *rows))
    assert sorted("".join(shown.split())) == sorted("".join(wanted.split()))
    lines = len(shown.splitlines())
    if width == 40:
        assert lines > 2 * (1 + len(rows))
    else:  # at 60 each name has a line of its own, and no word of it is cut
        assert lines == (1 + len(rows)) * (1 if width == 200 else 2)
        assert rows[0][0] in shown
