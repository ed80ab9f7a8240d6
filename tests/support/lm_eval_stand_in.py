"""The part of lm-evaluation-harness's interface that `rdrr.lm_eval` uses, for tests without it.

What the harness documents and no more: the base class with its split of context and continuation,
windows that predict each token once, and the registry. `modules` gives it the harness's names.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

REGISTRY: dict[str, type] = {}


@dataclass
class Instance:
    """A request of a task: only its arguments count."""

    args: tuple


class TemplateLM:
    """Splits pairs of texts into tokens and asks `_loglikelihood_tokens` for their scores."""

    def __init__(self):
        self.cached = []
        self.cache_hook = SimpleNamespace(add_partial=lambda *entry: self.cached.append(entry))

    @classmethod
    def create_from_arg_obj(cls, arguments, more=None):
        given = {key: value for key, value in (more or {}).items() if value is not None}
        return cls(**arguments, **given)

    def loglikelihood(self, requests, disable_tqdm=False):
        pairs = []
        for context, continuation in (request.args for request in requests):
            if context:
                kept = context.rstrip()
                whole = self.tok_encode(kept + context[len(kept) :] + continuation)
                ids = self.tok_encode(kept)
                pairs.append(((context, continuation), ids, whole[len(ids) :]))
            else:
                ids = self.tok_encode(continuation, add_special_tokens=False)
                pairs.append(((context, continuation), [self.prefix_token_id], ids))
        return self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)


def register_model(*names):
    def register(kind):
        REGISTRY.update(dict.fromkeys(names, kind))
        return kind

    return register


def normalize_gen_kwargs(given, default_max_gen_toks=256):
    until = given.get("until", [])
    samples = given.get("do_sample", False)
    return {
        **given,
        "until": until if isinstance(until, list) else [until],
        "max_gen_toks": given.get("max_gen_toks", default_max_gen_toks),
        "temperature": given.get("temperature", 1.0) if samples else 0.0,
    }


def get_rolling_token_windows(token_list, prefix_token, max_seq_len, context_len):
    """Windows (inputs, predictions): the first begins with the prefix, the last is full."""
    size = min(max_seq_len, len(token_list))
    yield [prefix_token, *token_list[: size - 1]], token_list[:size]
    while size < len(token_list):
        end = min(size + max_seq_len - context_len + 1, len(token_list))
        yield token_list[end - max_seq_len - 1 : end - 1], token_list[size:end]
        size = end


def make_disjoint_window(pair):
    context, predictions = pair
    return context[: len(context) - len(predictions) + 1], predictions


def modules() -> dict[str, ModuleType]:
    """The modules by the names under which the adapter imports them."""
    members = {
        "lm_eval": (),
        "lm_eval.api": (),
        "lm_eval.api.model": (TemplateLM,),
        "lm_eval.api.registry": (register_model,),
        "lm_eval.models": (),
        "lm_eval.models.utils": (normalize_gen_kwargs,),
        "lm_eval.utils": (get_rolling_token_windows, make_disjoint_window),
    }
    modules = {}
    for name, values in members.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update({value.__name__: value for value in values})
    return modules
