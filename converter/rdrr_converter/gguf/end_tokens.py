"""The tokens of a GGUF that end a text, as llama.cpp has them: by stated ids and by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

STATED = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""Tokens that end a text if the metadata states their id, in `tokenizer.ggml.NAME_token_id`."""

_NAMES = frozenset(
    (
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|call|>",
        "<|calls|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[EOS]",
        "[EOT]",
        "[e~[",
        "_<EOT>",
    )
)
_INFILL_NAMES = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Names of tokens for infilling, of which the first one counts where the metadata states no id."""

_CALLS = ("<|call|>", "<|calls|>")


def end_tokens(tokens: Sequence[str], stated: Mapping[str, int | None]) -> list[int]:
    """Return the ids that end a text, the stated ones first.

    Args:
        tokens: The tokens by id.
        stated: Ids that the metadata states, by the names of `STATED`.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    ends = [stated.get(name) for name in STATED]
    for name, known in _INFILL_NAMES.items():
        if stated.get(name) is None:
            ends.append(next((ids[token] for token in known if token in ids), None))
    ends += sorted(ids[token] for token in _NAMES & ids.keys())
    others = {tokens[index] for index in ends if index is not None}
    if _ends_only_a_part(others):
        others.discard("<|end|>")
    if "<|tool_response>" in others:
        others.discard("</s>")
    return list(dict.fromkeys(i for i in ends if i is not None and tokens[i] in others))


def _ends_only_a_part(ends: set[str]) -> bool:
    """Return whether <|end|> ends a part of an answer, as in harmony, and not the answer."""
    return not ends.isdisjoint(_CALLS) and not ends.isdisjoint(("<|return|>", "<|flush|>"))
