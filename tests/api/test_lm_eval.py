"""The adapter for lm-evaluation-harness, against transformers.

With the harness installed its own base class is used, and otherwise a stand-in for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest
import rdrr
import torch
from rdrr_format.errors import UsageError
from support import lm_eval_stand_in
from support.commands import EXAMPLE

HAS_HARNESS = importlib.util.find_spec("lm_eval") is not None

PAIRS = [
    ("And it came to pass", " that he said"),
    ("And it came to pass", " in the land of Egypt"),
    ("In the beginning ", "God created"),
    ("", "Behold, the king"),
    ("And it came to pass", ","),
]
TEXT = "And it came to pass in those days, that there went out a decree from the king. " * 4


@pytest.fixture(scope="module")
def adapter():
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_HARNESS:
            for name, module in lm_eval_stand_in.modules().items():
                patch.setitem(sys.modules, name, module)
        patch.delitem(sys.modules, "rdrr.lm_eval", raising=False)
        yield importlib.import_module("rdrr.lm_eval")
    sys.modules.pop("rdrr.lm_eval", None)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness") / "f32"
    rdrr.convert(EXAMPLE, folder, quantize="f32")
    return folder


@pytest.fixture(scope="module")
def model(adapter, package):
    loaded = adapter.RdrrLM(package, backend="cpu", context=64)
    yield loaded
    loaded.model.close()


@pytest.fixture(scope="module")
def reference():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reference_model = AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype=torch.float32).eval()
    return SimpleNamespace(model=reference_model, tokenizer=AutoTokenizer.from_pretrained(EXAMPLE))


def request(*arguments):
    return SimpleNamespace(args=arguments)


def score(reference, context, continuation):
    """The log-likelihood by transformers, and whether the continuation is greedy."""
    with torch.no_grad():
        logits = reference.model(torch.tensor([context + continuation])).logits[0]
    rows = logits[len(context) - 1 : -1].double().log_softmax(-1)
    ids = torch.tensor(continuation)
    total = rows.gather(1, ids[:, None]).sum()
    return float(total), bool((rows.argmax(-1) == ids).all())


def encode(reference, text):
    return reference.tokenizer.encode(text, add_special_tokens=False)


def split(reference, model, context, continuation):
    if not context:
        return [model.prefix_token_id], encode(reference, continuation)
    kept = context.rstrip()
    whole = encode(reference, context + continuation)
    ids = encode(reference, kept)
    return ids, whole[len(ids) :]


def test_loglikelihoods_are_those_of_transformers(model, reference):
    scores = model.loglikelihood([request(*pair) for pair in PAIRS])
    expected = [score(reference, *split(reference, model, *pair)) for pair in PAIRS]
    for (total, greedy), (wanted, is_greedy) in zip(scores, expected, strict=True):
        assert total == pytest.approx(wanted, abs=2e-3)
        assert greedy == is_greedy
    assert len({greedy for _, greedy in scores}) == 2  # both answers occur


def test_a_context_is_run_once_for_all_its_continuations(model, monkeypatch):
    runs = []
    plain = model.model.loglikelihoods
    monkeypatch.setattr(
        model.model,
        "loglikelihoods",
        lambda prompt, wanted: runs.append(len(wanted)) or plain(prompt, wanted),
    )
    model.loglikelihood([request(*pair) for pair in PAIRS])
    assert sorted(runs) == [1, 1, 3]


def test_a_context_that_is_too_long_is_cut_on_the_left(model, reference):
    ids = encode(reference, TEXT)
    assert len(ids) > model.max_length
    (total, _), *_ = model._loglikelihood_tokens([(("a", "b"), ids[:-3], ids[-3:])])
    window = ids[-(model.max_length + 1) :]
    assert total == pytest.approx(score(reference, window[:-3], window[-3:])[0], abs=2e-3)
    with pytest.raises(UsageError, match="longer than the context"):
        model._loglikelihood_tokens([(None, [1], ids)])


def test_rolling_loglikelihood_predicts_each_token_once_in_full_windows(model, reference):
    scores = model.loglikelihood_rolling([request(TEXT), request("Behold")])
    for total, text in zip(scores, (TEXT, "Behold"), strict=True):
        ids = encode(reference, text)
        size, wanted, done = model.max_length, 0.0, 0
        line = [model.prefix_token_id, *ids]
        while done < len(ids):
            end = min(done + size, len(ids))
            start = max(0, end - size)
            wanted += score(reference, line[start : done + 1], line[done + 1 : end + 1])[0]
            done = end
        assert total == pytest.approx(wanted, abs=1e-2)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_generations_end_before_a_stop_string_whether_batched_or_not(model, size, monkeypatch):
    monkeypatch.setattr(model, "batch_size", size)
    options = {"until": [" the"], "max_gen_toks": 12, "do_sample": False}
    prompts = ["And it came to pass", "In the beginning", "Behold"]
    requests = [request(one, options) for one in prompts]
    requests.insert(1, request("Behold", {"until": "\n", "max_gen_toks": 3}))
    texts = model.generate_until(requests)
    assert texts[1] == model.model.generate("Behold", max_tokens=3, stop="\n").read()
    for text, prompt in zip(texts[:1] + texts[2:], prompts, strict=True):
        assert text == model.model.generate(prompt, max_tokens=12, stop=" the").read()


def test_a_task_that_generates_more_than_the_context_is_refused(model):
    with pytest.raises(UsageError, match="more tokens than the context holds"):
        model.generate_until([request("Behold", {"max_gen_toks": 64})])


def test_the_arguments_of_the_harness_make_a_model(adapter, package):
    more = {"batch_size": "auto", "max_batch_size": 4, "device": None}
    loaded = adapter.RdrrLM.create_from_arg_obj({"path": package, "backend": "cpu"}, more)
    assert loaded.batch_size == 4
    loaded.model.close()
    for wrong in (0, "many", -1):
        with pytest.raises(UsageError, match="`batch_size` is wrong"):
            adapter.RdrrLM(package, batch_size=wrong)


def test_texts_begin_with_the_token_that_is_asked_for(model, monkeypatch):
    plain = model.tok_encode("Behold")
    assert plain == model.model.encode("Behold")
    monkeypatch.setattr(model, "_add_bos", True)
    assert model.tok_encode("Behold") == [model.prefix_token_id, *plain]
    assert model.tok_encode("<s>Behold") == [model.prefix_token_id, *plain]
    assert model.tok_encode("Behold", add_special_tokens=False) == plain


def test_chat_templates_are_those_of_the_package(model):
    messages = [{"role": "user", "content": "Behold"}]
    text = model.apply_chat_template(messages)
    assert text.endswith("<|im_start|>assistant\n")
    assert not model.apply_chat_template(messages, False).endswith("assistant\n")
    assert "im_start" in model.chat_template(True)
    assert model.chat_template(False) is None
    assert model.tokenizer_name == "small-llama"


def test_without_the_harness_the_extra_is_named_and_rdrr_does_not_need_it():
    code = (
        "import sys; sys.modules['lm_eval'] = None; import rdrr\n"
        "try:\n    import rdrr.lm_eval\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'lm-eval>=0.4.10'" in done.stdout


def test_a_package_that_names_no_first_or_last_token_is_refused_where_one_is_needed(
    model, monkeypatch
):
    monkeypatch.setattr(model, "_eos", None)
    assert model.prefix_token_id == model._bos
    monkeypatch.setattr(model, "_bos", None)
    with pytest.raises(UsageError, match="begins or ends with"):
        model.loglikelihood([request("", "Behold")])
