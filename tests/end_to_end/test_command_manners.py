"""Manners of the command line: short options, help, completion, names of the hub, progress."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import pty
import re
import subprocess
import sys

import numba
import pytest
from rdrr.cli import app
from rdrr.cli._invocation import as_command
from rdrr.cli._log import COMPONENTS
from rdrr.cli._wording import typer_info
from rdrr.cli.generate import stats_rows
from rdrr_runtime.decode.stats import GenerationStats
from support.commands import environment, error_line, rdrr, rdrr_each
from support.object_store import files
from typer.main import get_group

MAIN = "from rdrr.cli import main; main()"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SHORT = ("--backend", "cpu")


def options_of_all_commands():
    """Each command's name and one of its options."""
    group = get_group(app.build_app(app.COMMANDS))
    return [(name, param) for name, command in group.commands.items() for param in command.params]


def shown_in_a_terminal(*words, columns):
    """Return what a command shows in a terminal of this width, without colours and movements."""
    process, terminal = pty.fork()
    if process == 0:
        variables = environment(COLUMNS=str(columns), TERM="xterm")
        os.execvpe(sys.executable, [sys.executable, "-c", MAIN, *map(str, words)], variables)
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:  # the command has ended
        pass
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, shown
    return ESCAPES.sub("", shown.decode("utf-8", "replace"))


# Choices in any case


def test_every_closed_choice_takes_its_values_in_any_case():
    choices = [
        (command.name, parameter)
        for command in app.COMMANDS
        for parameter in inspect.signature(as_command(command.function, dict)).parameters.values()
        if "Literal" in str(parameter.annotation)
    ]
    assert len(choices) > 15
    wrong = [
        (name, choice.name)
        for name, choice in choices
        if typer_info(choice.annotation).case_sensitive
    ]
    assert not wrong


def test_choices_in_upper_case_do_the_same(shallow_checkpoint, shallow_package, tmp_path):
    words = ("convert", shallow_checkpoint, tmp_path / "out", "--dry-run", "--tensor-type")
    upper = ("v_proj=q8_0", "--quantize", "Q4_K_M", "--k-tail", "GGML")
    lower = ("v_proj=Q8_0", "--quantize", "q4_k_m", "--k-tail", "ggml")
    results = [rdrr(*words, *more) for more in (upper, lower)]
    assert results[0].code == 0, results[0].err
    assert results[0].out == results[1].out
    words = (
        "generate",
        shallow_package,
        "-p",
        "x",
        "-n",
        1,
        "--kv-dtype",
        "F16",
        "--backend",
        "CPU",
    )
    assert rdrr(*words, "--decode", "AR").code == 0
    assert rdrr("schema", "--of", "Report").out == rdrr("schema", "--of", "report").out
    assert "q4_k_m" in error_line(
        rdrr("convert", shallow_checkpoint, tmp_path / "out", "--quantize", "Q3_X")
    )


# Short names of repositories on the hub


@pytest.mark.thorough
def test_a_short_name_means_the_hub_where_no_such_path_exists(
    shallow_checkpoint, hub, variables, tmp_path
):
    hub.add("org/checkpoint", files(shallow_checkpoint))
    out = tmp_path / "out"
    said, quiet = rdrr_each(
        ["convert", "org/checkpoint", out],
        ["convert", "org/checkpoint@main", tmp_path / "again", "--quiet"],
        **variables,
    )
    assert said.code == 0, said.err
    line = "there is no file or folder org/checkpoint; reading hf://org/checkpoint from the hub"
    assert line in said.err.splitlines()
    assert (quiet.code, quiet.err) == (0, "")
    assert files(out) == files(tmp_path / "again")
    hub.add("org/package", files(out))
    valid, text, same, inspected = rdrr_each(
        ["validate", "org/package"],
        ["generate", "org/package", "-p", "And it", "-n", "2", *SHORT],
        ["diff", "org/package", out],
        ["inspect", "org/package", "--json"],
        **variables,
    )
    assert valid.code == text.code == same.code == 0, (valid.err, text.err, same.err)
    assert inspected.json() == rdrr("inspect", out, "--json").json()


def test_a_folder_of_this_name_comes_before_the_hub(
    hub_here, shallow_package, tmp_path, monkeypatch
):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "package").symlink_to(shallow_package)
    monkeypatch.chdir(tmp_path)
    done = rdrr("validate", "org/package")
    assert (done.code, done.err) == (0, "")
    assert hub_here.requests == []


def test_the_error_for_a_name_that_is_nowhere_says_both(hub_here, tmp_path, monkeypatch):
    commands = [["validate", "org/none"], ["convert", "org/none", tmp_path / "out", "--quiet"]]
    for command in commands:
        done = rdrr(*command)
        assert done.code == 1
        line = done.err.splitlines()[-1]
        assert line.startswith("error: org/none: there is no such file or folder")
        assert "hf://org/none cannot be read: no such repository" in line
    assert hub_here.requests
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    error = rdrr("inspect", "org/none", "--json").json()
    assert error["where"] == "org/none"
    assert "no such file or folder" in error["message"]
    assert "the hub cannot be reached" in error["message"]


# Short options, -v and help


def test_short_options_are_the_long_ones(shallow_package):
    words = ("generate", shallow_package, *SHORT, "--json")
    short = rdrr(*words, "-p", "And it", "-n", 3, "-c", 64).json()
    long = rdrr(*words, "--prompt", "And it", "--max-tokens", 3, "--context", 64).json()
    assert short["token_ids"] == long["token_ids"]
    memory = [
        rdrr("inspect", shallow_package, "--memory", "--json", flag, 100).json()["memory"]
        for flag in ("-c", "--context")
    ]
    assert memory[0] == memory[1]


def test_verbose_says_what_was_decided_and_how_long_it_took(shallow_package):
    words = ("generate", shallow_package, "-p", "And it", "-n", 1, "--backend")
    plain, verbose = (rdrr(*words, "cpu", *more) for more in ((), ("-v",)))
    on_gpu = rdrr(*words, "wgpu", "-vv")
    assert plain.out == verbose.out
    assert plain.err.strip() in verbose.err.splitlines()
    for words_of_progress in ("loading the model", "key-value cache", "finished"):
        assert words_of_progress not in plain.err
        for done in (verbose, on_gpu):
            assert re.search(rf"^\[ *\d+\.\d\d s\] .*{words_of_progress}", done.err, re.M), (
                words_of_progress
            )
    assert re.search(r"^\[ *\d+\.\d\d s\] .*matvec\.", on_gpu.err, re.M)
    assert "compiling shaders (1 of " in on_gpu.err


@pytest.mark.thorough
def test_shaders_are_counted_only_when_verbose_is_given_twice(shallow_package):
    words = ("generate", shallow_package, "-p", "And it", "-n", 1, "--backend", "wgpu")
    plain, verbose, twice = (rdrr(*words, *more) for more in ((), ("-v",), ("-vv",)))
    assert plain.out == verbose.out == twice.out
    assert plain.err in verbose.err
    assert "matvec." in verbose.err
    assert "compiling shaders" not in verbose.err
    assert "compiling shaders (1 of " in twice.err


def test_verbose_may_stand_before_or_after_the_command_and_leaves_no_trace(shallow_package):
    before = rdrr("-v", "validate", shallow_package)
    after = rdrr("validate", shallow_package, "--verbose")
    assert before.out == after.out == rdrr("validate", shallow_package).out
    assert "finished" in before.err
    assert "finished" in after.err
    for name in COMPONENTS:
        logger = logging.getLogger(name)
        assert (logger.level, logger.handlers) == (logging.NOTSET, [])


def test_verbose_gives_the_time_of_each_stage_of_a_conversion(shallow_checkpoint, tmp_path):
    done = rdrr("convert", shallow_checkpoint, tmp_path / "out", "--quiet", "-v", code=0)
    for stage in ("reading", "converting", "verifying"):
        assert re.search(rf"{stage} took \d+\.\d\d s", done.err), stage


@pytest.mark.parametrize("words", [("hi",), ("hi", "there")])
def test_a_prompt_without_its_flag_is_told_the_flag(shallow_package, words):
    done = rdrr("generate", shallow_package, *words)
    assert '-p "TEXT"' in error_line(done, 2)
    assert "--help" in error_line(rdrr("validate", shallow_package, *words))  # the control


def test_help_is_a_command_too():
    assert rdrr("help").out == rdrr("--help").out
    assert rdrr("help", "bench").out == rdrr("bench", "--help").out == rdrr("help", "BENCH").out
    wrong = rdrr("help", "no-such-command")
    assert "'bench'" in error_line(wrong, 2)


def test_no_help_text_of_an_option_is_missing_or_cut_off():
    options = [(name, command) for name, command in options_of_all_commands() if not command.hidden]
    for name, option in options:
        text = getattr(option, "help", None)
        assert text, (name, option.name)
        assert text.rstrip()[-1] in ".]", (name, option.name, text)


# Completion


COMPLETE = """
import os, sys
from rdrr.cli import main
sys.argv = ["rdrr"]
os.environ["_RDRR_COMPLETE"] = "complete_bash"
for line in sys.stdin.read().splitlines():
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = line, str(line.count(" "))
    try:
        main()
    except SystemExit as ended:
        print(f"code {ended.code}")
"""


def completions(*lines):
    """What a shell offers for the last word of each line."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE],
        input="\n".join(lines),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *offered, rest = done.stdout.split("code 0\n")
    assert rest == ""
    return [offer.split() for offer in offered]


def test_a_shell_completes_commands_options_and_values():
    commands, helped, options, values, kinds, ways = completions(
        "rdrr ge",
        "rdrr help per",
        "rdrr convert --qu",
        "rdrr convert --quantize Q",
        "rdrr generate --kv-dtype q",
        "rdrr generate --decode s",
    )
    assert (commands, helped) == (["generate"], ["perplexity"])
    assert "--quantize" in options
    assert {"q4_k_m", "q8_0"} <= set(values)
    assert (kinds, ways) == (["q8_0"], ["speculative"])


def test_the_help_says_how_completion_is_installed_and_it_is_printed():
    assert "--install-completion" in rdrr("--help").out
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = rdrr("--show-completion", "bash", extra=named, code=0)
    assert "_RDRR_COMPLETE=complete_bash" in shown.out


# Progress


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [60, 120])
def test_bars_and_tables_fit_the_terminal(shallow_checkpoint, columns, tmp_path):
    shown = shown_in_a_terminal("convert", shallow_checkpoint, tmp_path / "out", columns=columns)
    for word in ("reading", "converting", "verifying", "of 2.9 M weights", "worst error"):
        assert word in shown
    assert ("model.embed_tokens.weight" in shown) == (columns == 120)
    summary = [line for line in shown.replace("\r", "\n").splitlines() if "million weights" in line]
    lines = set(shown.replace("\r", "\n").splitlines()) - set(summary)
    assert max(map(len, lines)) <= columns
    tables = shown_in_a_terminal("report", tmp_path / "out", columns=columns).splitlines()[1:]
    assert max(len(line.rstrip("\r")) for line in tables) <= columns


@pytest.mark.parametrize("columns", [60, pytest.param(120, marks=pytest.mark.thorough)])
def test_architectures_show_their_classes_where_these_need_not_be_folded(columns):
    *lines, last = shown_in_a_terminal("architectures", columns=columns).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns, last
    llama = next(line.split() for line in lines if line.startswith("llama "))
    assert ("LlamaForCausalLM," in llama) == (columns == 120)
    assert any("`rdrr architectures NAME`" in line for line in lines) == (columns == 60)


@pytest.mark.thorough
@pytest.mark.parametrize("flag", ["--quiet", "--json"])
def test_no_bar_is_drawn_when_only_the_result_is_wanted(shallow_checkpoint, flag, tmp_path):
    shown = shown_in_a_terminal("convert", shallow_checkpoint, tmp_path / "out", flag, columns=60)
    assert "converting" not in shown
    assert (shown == "") == (flag == "--quiet")


@pytest.mark.thorough
def test_a_terminal_shows_what_is_done_before_the_text_comes(shallow_package):
    words = ("generate", shallow_package, "-p", "And it", "-n", 2, "--backend", "wgpu")
    shown = shown_in_a_terminal(*words, columns=60)
    assert "loading the model" in shown
    assert re.search(r"compiling shaders \(\d+ of \d+\)", shown)
    assert "compiling" not in shown_in_a_terminal(*words, "--json", columns=60)


def test_codecs_are_announced_while_they_are_compiled_and_not_when_they_are_cached(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "rdrr_probe.py").write_text(
        "from rdrr_format.codecs.compiled import compiled\n\n\n"
        "@compiled\ndef twice(x):\n    return 2 * x\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    said = []
    for _ in range(2):
        # A module that is imported anew knows no more than that of another process.
        monkeypatch.delitem(sys.modules, "rdrr_probe", raising=False)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert importlib.import_module("rdrr_probe").twice(2) == 4
        said.append([line for line in caplog.messages if "codecs" in line])
    assert said == [["compiling codecs (twice)"], []]


# Figures


def test_a_speed_that_was_not_measured_is_left_out():
    stats = GenerationStats(prompt_tokens=4, new_tokens=1, first_token_seconds=1, total_seconds=1)
    two = GenerationStats(prompt_tokens=4, new_tokens=3, first_token_seconds=1, total_seconds=2)
    assert dict(stats_rows(two.as_dict()))["decode"] == "2.0 tokens/s"
    assert "decode" not in dict(stats_rows(stats.as_dict()))
    assert dict(stats_rows(stats.as_dict()))["prefill"] == "4.0 tokens/s"


def test_stats_of_one_token_have_no_speed_of_decoding(shallow_package):
    words = ("generate", shallow_package, "-p", "And it", *SHORT, "--stats")
    assert "decode" in rdrr(*words, "-n", 2).err
    assert "decode" not in rdrr(*words, "-n", 1).err
