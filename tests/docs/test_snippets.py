"""What README and docs show works: some blocks run, and others name only what exists."""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path

import pytest
import typer
from rdrr.cli.app import COMMANDS, build_app
from support.commands import EXAMPLE, environment, rdrr
from support.snippets import PAGES, ROOT, Snippet, snippets

RUN_PAGES = [page for page in PAGES if any(snippet.is_run for snippet in snippets(page))]
FIRST = ("README.md", "errors.md")
"""Pages that a reader begins with, which `make test` runs."""
CONVERSION = "rdrr convert examples/small-llama small-llama-rdrr\n"

NAMED = {page: page.relative_to(ROOT).as_posix() for page in PAGES}


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """The package that the tutorial makes, which the other pages use."""
    folder = tmp_path_factory.mktemp("docs") / "small-llama-rdrr"
    assert rdrr("convert", EXAMPLE, folder).code == 0
    return folder


@pytest.fixture
def folder(request, page, tmp_path, monkeypatch):
    """The current folder of a reader, with the package, unless the page begins by making it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if CONVERSION not in page.read_text(encoding="utf-8"):
        package = request.getfixturevalue("package")
        shutil.copytree(package, tmp_path / package.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page.name in FIRST else pytest.mark.thorough)
        for page in RUN_PAGES
    ],
    ids=NAMED.get,
)
def test_the_snippets_of_a_page_run_in_order(page, folder):
    """In this process, which saves the imports of each command."""
    for part in parts_of(page, run_here, run_python_here):
        part(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("page", RUN_PAGES, ids=NAMED.get)
def test_the_snippets_of_a_page_run_in_processes_of_their_own_and_once_more(page, folder):
    """Once more, because readers repeat a page; what leaves no file does the same each time."""
    parts = parts_of(page, run, run_python)
    for part in [part for part in parts if changes_files(part, folder)]:
        try:
            part(folder)
        except AssertionError as refusal:
            if "--overwrite" not in str(refusal):
                raise


def parts_of(page: Path, run_command, run_block):
    """Yield what runs each command and each block of Python of a page, in a folder."""
    for snippet in snippets(page):
        if snippet.language == "python":
            yield partial(run_block, snippet)
        elif snippet.is_run:
            for command in snippet.commands():
                yield partial(run_command, command)


def changes_files(part, folder: Path) -> bool:
    """Run a part of a page, and return whether it has written, changed or removed a file."""
    settings(folder)  # which makes files of its own
    before = files_in(folder)
    part(folder)
    return files_in(folder) != before


def files_in(folder: Path):
    """Return the size and the time of the last change of each file."""
    states = {one: one.lstat() for one in folder.rglob("*")}
    return {path: (state.st_size, state.st_mtime_ns) for path, state in states.items()}


@pytest.mark.parametrize("page", PAGES, ids=NAMED.get)
def test_what_is_not_run_names_commands_flags_and_files_that_exist(page):
    faults = [
        f"{NAMED[page]}:{snippet.line}: {fault}"
        for snippet in snippets(page)
        if not snippet.is_run
        if snippet.language in ("", "text", "console")
        for words in snippet.calls()
        for fault in faults_of(words)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("page", PAGES, ids=NAMED.get)
def test_fragments_of_python_can_be_parsed(page):
    for snippet in snippets(page):
        if snippet.language == "py":
            ast.parse("def fragment():\n" + textwrap.indent(snippet.text, "    "))


def test_the_check_finds_a_flag_a_command_a_script_and_a_target_that_do_not_exist():
    assert not [*faults_of(["rdrr", "convert", "SRC", "DST", "--overwrite"])]
    assert [*faults_of(["rdrr", "convert", "SRC", "DST", "--overwrites"])]
    assert [*faults_of(["rdrr", "converts", "SRC", "DST"])]
    assert not [*faults_of(["python", "benchmarks/bench_decode.py", "--peer", "PATH"])]
    assert [*faults_of(["python", "benchmarks/bench_decode.py", "--peers", "PATH"])]
    assert not [*faults_of(["python", "benchmarks/bench_decode.py", "--prompt-tokens", "4"])]
    assert [*faults_of(["python", "benchmarks/no_such.py"])]
    assert not [*faults_of(["make", "test"])]
    assert [*faults_of(["make", "no-such-target"])]


def run_here(command: str, folder: Path):
    """Run a command of ours in this process, and any other in a shell."""
    words = shlex.split(command)
    if words[0] not in ("rdrr", "convert-cli") or set(command) & set("|<>&;$*"):
        run(command, folder)
        return
    rdrr(*words[1:], program=words[0], code=0)


def run_python_here(snippet: Snippet, _folder: Path):
    place = f"{NAMED[snippet.page]}:{snippet.line}"
    with redirect_stdout(io.StringIO()):
        exec(compile(snippet.text, place, "exec"), {"__name__": "__main__"})


def run(command: str, folder: Path):
    check(subprocess.run(command, shell=True, **settings(folder)), command)


def run_python(snippet: Snippet, folder: Path):
    place = f"{NAMED[snippet.page]}:{snippet.line}"
    check(subprocess.run([sys.executable, "-c", snippet.text], **settings(folder)), place)


def settings(folder: Path):
    """What a snippet runs with: this interpreter's `rdrr`, whatever else is on the path."""
    programs = folder / ".programs"
    if not programs.exists():
        programs.mkdir()
        for name, main in (("rdrr", "main"), ("convert-cli", "convert_main")):
            code = f"import sys; from rdrr.cli import {main}; sys.exit({main}())"
            program = programs / name
            program.write_text(
                f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n', encoding="utf-8"
            )
            program.chmod(0o755)
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    return {
        "cwd": folder,
        "env": environment(PATH=path),
        "stdin": subprocess.DEVNULL,
        "capture_output": True,
        "text": True,
        "timeout": 300,
    }


def check(done: subprocess.CompletedProcess, what: str):
    assert done.returncode == 0, f"{what}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def faults_of(words: list[str]):
    """Yield what a command line names that does not exist."""
    program, *rest = words
    flags = {argument.split("=")[0] for argument in rest if re.match(r"--?[a-z]", argument)}
    if program in ("rdrr", "convert-cli"):
        name = rest[0] if program == "rdrr" else "convert"
        if name.startswith("-"):
            return
        if name not in command_flags():
            yield f"there is no command {name}"
            return
        yield from (f"{name} has no flag {flag}" for flag in flags - command_flags()[name])
    elif program == "make":
        targets = re.findall(
            r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        targets += re.findall(
            r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        wanted = [argument for argument in rest if "=" not in argument]
        yield from (
            f"there is no make target {target}" for target in wanted if target not in targets
        )
    else:
        files = [
            argument for argument in rest if re.match(r"(tests|benchmarks|docs|\.ci)/", argument)
        ]
        for file in files:
            path = ROOT / file.split("::")[0]
            if not path.exists():
                yield f"there is no file {file}"
            elif program == "python" and path.is_file():
                source = source_of(path)
                yield from (
                    f"{file} has no flag {flag}" for flag in flags if f'"{flag}"' not in source
                )


def source_of(script: Path) -> str:
    """Return the text of a script and of the modules beside it that it imports."""
    text = script.read_text(encoding="utf-8")
    modules = re.findall(r"^from (\w+) import", text, re.MULTILINE)
    beside = (script.with_name(f"{module}.py") for module in modules)
    return "\n".join([text, *(one.read_text(encoding="utf-8") for one in beside if one.is_file())])


@cache
def command_flags() -> dict[str, set[str]]:
    group = typer.main.get_command(build_app(COMMANDS))
    return {
        name: {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        | {"--help", "-h"}
        for name, command in group.commands.items()
    }
