"""`Model.rank` against transformers: the probability of `yes` against `no` after the question."""

from __future__ import annotations

import pytest
import rdrr
import torch
from rdrr_converter.convert import convert
from rdrr_format.errors import GenerationError, ManifestError, UsageError
from support.checkpoints import make_model, save_checkpoint
from support.tiny_models import TinyModel

# The tiny tokenizer has one token for each byte, so the answers are letters.
PROMPT = rdrr.RankPrompt(
    before="[judge] ",
    pair="I: {instruction} Q: {query} D: {document}",
    after=" [answer] ",
    instruction="find",
    yes="y",
    no="n",
)
TEXTS = ["a text", "a text that begins alike {query}", "", "another one"]
QUERY = "which {document}?"
BOUNDS = {"cpu": 1e-4, "wgpu": 1e-3}


# test_classification.py ranks no texts on the GPU, but runs its passes.
@pytest.mark.parametrize("backend", ["cpu", pytest.param("wgpu", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("instruction", [None, "sort"])
def test_scores_are_the_probability_of_yes(backend, instruction, rng, tmp_path):
    tiny = TinyModel("qwen3", 256, (("tie_word_embeddings", True),))
    model = make_model(tiny, rng, num_hidden_layers=2)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    hints = {"computePrecision": "f32"} if backend == "wgpu" else {}
    with rdrr.load(tmp_path / "package", backend=backend, kernel_hints=hints) as loaded:
        scores = loaded.rank(QUERY, TEXTS, instruction=instruction, prompt=PROMPT)
        for text, score in zip(TEXTS, scores, strict=True):
            said = instruction or "find"
            whole = f"[judge] I: {said} Q: {QUERY} D: {text} [answer] "
            ids = loaded.encode_as_is(whole)
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
            yes, no = (loaded.encode_as_is(letter)[0] for letter in "yn")
            wanted = torch.softmax(logits[[no, yes]], 0)[1].item()
            assert abs(score - wanted) <= BOUNDS[backend]
        assert max(scores) - min(scores) > 1e-3
        assert loaded.rank(QUERY, [], prompt=PROMPT) == []


def test_the_usual_question_is_that_of_the_published_models():
    seen = []
    ids = rdrr.RankPrompt().ids(lambda text: seen.append(text) or [], "q", "d", None)
    assert ids == []
    assert seen[0].startswith("<|im_start|>system\nJudge whether the Document meets")
    assert seen[1] == (
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: q\n<Document>: d"
    )
    assert seen[2] == "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_what_cannot_be_ranked_says_why(shallow_checkpoint, tmp_path):
    convert(shallow_checkpoint, tmp_path / "package")
    letters = rdrr.RankPrompt(before="", after="", yes="a", no="b")
    with rdrr.load(tmp_path / "package", backend="cpu", context=64) as loaded:
        with pytest.raises(ManifestError, match="no single tokens"):
            loaded.rank("q", ["d"], prompt=rdrr.RankPrompt(yes="yesyesyes zzq"))
        with pytest.raises(UsageError, match="not a string"):
            loaded.rank(3, ["d"], prompt=letters)
        with pytest.raises(GenerationError, match="does not fit"):
            loaded.rank("q", ["one two three " * 60], prompt=letters)
