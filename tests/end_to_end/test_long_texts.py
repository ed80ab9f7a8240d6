"""A full context as a user of the command line sees it."""

from __future__ import annotations

from support.commands import error_line, rdrr

SHORT = ("--prompt", "And it came to pass", "--backend", "cpu", "--context", 24, "--json")


def test_a_full_context_ends_the_text_unless_it_is_shifted(shallow_package):
    ended = rdrr("generate", shallow_package, *SHORT, "--max-tokens", 40).json()
    assert ended["stats"]["finish"] == "context"
    assert ended["stats"]["context_shifts"] == 0
    assert ended["prompt_tokens"] + len(ended["token_ids"]) == 24 + 1
    going = rdrr(
        "generate", shallow_package, *SHORT, "--max-tokens", 40, "--context-shift", 4
    ).json()
    assert (going["stats"]["finish"], len(going["token_ids"])) == ("length", 40)
    assert going["stats"]["context_shifts"] >= 2
    assert going["token_ids"][: len(ended["token_ids"])] == ended["token_ids"]


def test_a_text_that_fills_the_context_says_so(shallow_package):
    for tokens, full in ((40, True), (4, False)):
        done = rdrr("generate", shallow_package, *SHORT[:-1], "--max-tokens", tokens)
        assert ("the context is full" in done.err) == full
        assert "the context" not in done.out


def test_a_prompt_beyond_the_context_is_refused_unless_it_may_shift(shallow_package):
    long = ("--prompt", "And it came to pass. " * 20)
    refused = rdrr("generate", shallow_package, *SHORT[2:-1], *long, "--max-tokens", 2)
    assert "longer than the context" in error_line(refused, 1)
    done = rdrr(
        "generate", shallow_package, *SHORT[2:], *long, "--max-tokens", 2, "--context-shift", 0
    )
    assert len(done.json()["token_ids"]) == 2
    wrong = rdrr("generate", shallow_package, *SHORT[:-1], "--context-shift", 13)
    assert "0 to 12" in error_line(wrong, 2)
