"""`rdrr chat`: conversations through a pipe and in a terminal, saved, loaded and stopped."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import sys

import pytest
import rdrr as front
from rdrr._chat import Conversation
from rdrr.cli.chat import _answer, _lines, _talk
from rdrr_format.errors import ManifestError
from support.commands import environment, error_line, rdrr
from transformers import AutoTokenizer

SHORT = ("--backend", "cpu", "--max-tokens", 8, "--context", 256)


@pytest.fixture(scope="module")
def model(shallow_package):
    with front.load(shallow_package, backend="cpu", context=256) as loaded:
        yield loaded


def without_template(package) -> None:
    path = package / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8"))
    del settings["chat_template"]
    path.write_text(json.dumps(settings), "utf-8")


def test_the_prompt_of_a_chat_is_that_of_transformers(model, shallow_package):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who?"}]
    tokenizer = AutoTokenizer.from_pretrained(shallow_package)
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    generation = model.chat(messages, max_tokens=5)
    assert generation.prompt_ids == expected
    assert generation.read() == model.generate(expected, max_tokens=5).read()


def test_the_second_turn_runs_only_the_new_tokens(made_package):
    with front.load(made_package, backend="cpu", context=256) as model:
        conversation = Conversation(model, system="Be kind and answer in full sentences.")
        first = conversation.ask("Who art thou?", max_tokens=6)
        conversation.answered(first.read())
        second = conversation.ask("And who is he?", max_tokens=6)
        text = second.read()
        assert second.stats.cached_tokens >= len(first.prompt_ids)
        assert second.stats.cached_tokens < second.stats.prompt_tokens
        model.logits([1, 2, 3])  # which overwrites the KV cache
        afresh = model.chat(conversation.messages, max_tokens=6)
        assert (afresh.read(), afresh.stats.cached_tokens) == (text, 0)


def test_messages_of_the_command_write_control_tokens_only_with_the_flag(
    shallow_package, monkeypatch
):
    given = []
    monkeypatch.setattr("rdrr.cli.chat._talk", lambda _, options: given.append(options) or 0)
    for words in ((), ("--control-tokens",)):
        assert rdrr("chat", shallow_package, *SHORT, *words).code == 0
    assert [options["control_tokens"] for options in given] == [False, True]


def test_the_token_that_ends_a_turn_ends_an_answer(model):
    token_id = model.encode("<|im_end|>")[-1]
    messages = [{"role": "user", "content": "Who?"}]
    ended = model.chat(messages, max_tokens=9, logit_bias={token_id: 100.0})
    assert ended.read() == ""
    assert (ended.token_ids, ended.stats.finish) == ([token_id], "stop")


def test_a_piped_chat_answers_each_line_and_can_be_saved_and_loaded(made_package, tmp_path):
    saved = tmp_path / "talk.json"
    lines = ("/system Be kind.", "Who art thou?", "", f"/save {saved}", "/reset", "Who art thou?")
    hint = ("--kernel-hint", "attentionDecode=tiled_small")
    done = rdrr("chat", made_package, *SHORT, *hint, stdin="\n".join(lines), code=0)
    assert "warning: hint attentionDecode=tiled_small is not honoured" in done.err
    messages = json.loads(saved.read_text("utf-8"))
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    first = messages[2]["content"] + "\n"
    assert done.out == 2 * first
    assert len(first) > 5
    loaded = rdrr("chat", made_package, *SHORT, stdin=f"/load {saved}\nAnd?\n/exit\nnever\n")
    asked = rdrr("chat", made_package, *SHORT, stdin=f"{lines[0]}\n{lines[1]}\nAnd?\n")
    assert asked.out == first + loaded.out
    assert "warning" not in asked.err
    assert loaded.out.strip()


def test_a_package_without_a_template_needs_one_from_a_file(package, tmp_path):
    without_template(package)
    refused = rdrr("chat", package, *SHORT, stdin="Who?\n")
    assert "--template" in error_line(refused, 1)
    template_path = tmp_path / "own.jinja"
    template_path.write_text("{% for m in messages %}{{ m.content }}: {% endfor %}", "utf-8")
    assert rdrr("chat", package, *SHORT, "--template", template_path, stdin="Who?\n").out.strip()


def test_tokenizer_settings_that_are_not_json_are_named_in_the_error(package):
    for text, words in (("[" * 100_000, "the JSON text is nested too deeply"), ("{", "not JSON")):
        (package / "tokenizer_config.json").write_text(text, encoding="utf-8")
        done = rdrr("chat", package, *SHORT, stdin="hi\n")
        assert f"tokenizer_config.json: {words}" in error_line(done, 1)


def test_templates_come_from_the_file_before_the_settings_and_by_name(package, tmp_path):
    path = package / "tokenizer_config.json"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    settings = json.loads(path.read_text("utf-8")) | {"chat_template": named}
    path.write_text(json.dumps(settings), "utf-8")
    with front.load(package, backend="cpu", context=16) as model:
        assert model.chat_template().render([]) == "plain"
        assert model.chat_template(tools=True).render([]) == "tools"
    copy = shutil.copytree(package, tmp_path / "other")
    (copy / "chat_template.jinja").write_text("{{ bos_token }} file", "utf-8")
    with front.load(copy, backend="cpu", context=16) as model:
        assert model.chat_template().render([]) == "<s> file"
    (copy / "chat_template.jinja").write_text("{% if %}", "utf-8")
    with (
        front.load(copy, backend="cpu", context=16) as model,
        pytest.raises(ManifestError, match=r"chat_template\.jinja"),
    ):
        model.chat([{"role": "user", "content": "?"}])


@pytest.mark.parametrize(
    ("line", "said"),
    [("/dance", "/help"), ("/save", "/save FILE"), ("/load no-such-file", "no-such-file")],
)
def test_a_wrong_command_in_a_pipe_is_one_line_and_an_exit_code(shallow_package, line, said):
    done = rdrr("chat", shallow_package, *SHORT, stdin=f"{line}\nWho?\n")
    assert done.code != 0
    assert done.out == ""
    assert said in done.err.splitlines()[-1]


def test_help_is_a_line_for_each_command(shallow_package):
    done = rdrr("chat", shallow_package, *SHORT, stdin="/help\n/exit\n")
    assert "\\n" not in done.err
    assert {"/reset", "/exit"} <= {
        line.split()[0] for line in done.err.splitlines() if line.split()
    }


def test_ctrl_c_stops_an_answer_and_keeps_its_text(model, monkeypatch, capsys):
    conversation = Conversation(model)
    ask = conversation.ask

    def pressed(text, **options):
        generation = ask(text, **options)
        filtered = generation._text._filter
        one = filtered.feed
        count = []

        def feed(piece):
            count.append(piece)
            if len(count) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return one(piece)

        monkeypatch.setattr(filtered, "feed", feed)
        return generation

    monkeypatch.setattr(conversation, "ask", pressed)
    before = signal.getsignal(signal.SIGINT)
    _answer(conversation, "Who?", {"max_tokens": 16, "interval": 1})
    assert signal.getsignal(signal.SIGINT) is before
    kept = conversation.messages[-1]
    assert kept["role"] == "assistant"
    assert capsys.readouterr().out == kept["content"] + "\n"
    full = model.chat(conversation.messages[:-1], max_tokens=16).read()
    assert full.startswith(kept["content"])
    assert len(kept["content"]) < len(full) / 2


class Terminal(io.StringIO):
    """A standard input that is said to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_typed_lines_are_answered_and_a_wrong_command_does_not_end_the_chat(
    model, monkeypatch, capsys
):
    typed = iter(["/dance", "Who?"])
    shown = []

    def read(prompt):
        assert prompt == "> "
        shown.append(capsys.readouterr())
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin", Terminal())
    conversation = Conversation(model)
    assert _talk(conversation, {"max_tokens": 8}) == 0
    first, second, third = shown
    assert "/help lists the commands" in first.err
    assert "there is no such command" in second.err
    assert third.out == conversation.messages[-1]["content"] + "\n"
    assert len(third.out) > 5


@pytest.mark.thorough
def test_in_a_terminal_the_end_of_input_ends_the_chat_and_a_wrong_command_does_not(
    shallow_package,
):
    words = [
        sys.executable,
        "-c",
        "from rdrr.cli import main; main()",
        "chat",
        str(shallow_package),
    ]
    words += [str(option) for option in SHORT]
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(words[0], words, environment())
    try:
        read_until(terminal, "> ")
        os.write(terminal, b"/dance\n")
        assert "there is no such command" in read_until(terminal, "> ")
        os.write(terminal, b"Who?\n")
        assert len(read_until(terminal, "\n> ")) > len("Who?\r\n\r\n> ")
        os.write(terminal, b"\x04")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    finally:
        os.close(terminal)


def test_ctrl_c_at_the_prompt_does_not_end_the_chat(monkeypatch, capsys):
    typed = iter([" Who? ", KeyboardInterrupt(), "And?", EOFError()])

    def read(prompt):
        assert prompt == "> "
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    assert list(_lines(interactive=True)) == ["Who?", "And?"]
    assert "/exit" in capsys.readouterr().err


def read_until(terminal: int, mark: str) -> str:
    """Return what a terminal shows up to a mark; fail if it shows nothing for a minute."""
    shown = ""
    while not shown.replace("\r", "").endswith(mark):
        assert select.select([terminal], [], [], 60)[0], shown
        shown += os.read(terminal, 4096).decode("utf-8", errors="replace")
    return shown
