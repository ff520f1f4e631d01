"""Log-likelihoods of given texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evals.choices import Continuation
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel, load_model
from harness.models.tiny import tiny_tokenizer
from harness.sampling import scoring
from harness.sampling.scoring import likelihoods
from tests.harness.models.folders import chat_folder
from tests.refusals import refuses

ASKED = [Continuation(f"{n}+{n * n}=", text) for n in range(1, 10) for text in ("7", "8", "12", "1203", "123")]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model("builtin:tiny")


def test_it_is_the_sum_of_the_tokens_log_probs(model: LanguageModel) -> None:
    for one, found in zip(ASKED, likelihoods(model, ASKED), strict=True):
        context, tokens = model.encode(one.context), model.encode(one.context + one.text)
        with torch.no_grad():
            logps = model.model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(1)
        places = range(len(context), len(tokens))
        assert found.logp == pytest.approx(sum(float(logps[place - 1, tokens[place]]) for place in places), abs=1e-4)
        assert found.is_greedy == all(int(logps[place - 1].argmax()) == tokens[place] for place in places)
        assert found.n_tokens == len(places)


def test_neither_the_batch_nor_the_order_matters(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    together = likelihoods(model, ASKED)
    monkeypatch.setattr(scoring, "PASS_TOKENS", 30)
    apart = likelihoods(model, ASKED[::-1])[::-1]
    assert [one.logp for one in together] == pytest.approx([one.logp for one in apart], abs=1e-4)


def test_a_question_that_does_not_fit_is_refused_with_its_end(model: LanguageModel) -> None:
    with refuses(RefusedError, "sampling.question_exceeds_context") as refused:
        likelihoods(model, [Continuation("1+" * 1000 + "1=", "7")])
    assert str(refused.value.fields["context"]).endswith("+1=")


@pytest.mark.parametrize("context", ["", "1+1="])
def test_a_token_that_the_model_does_not_know_is_refused(context: str, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    model = load_model(f"path:{chat_folder(tmp_path / 'm', tokenizer, rows=21)}")
    with pytest.raises(RefusedError, match="contains <image>, a token for which the model has no embedding"):
        likelihoods(model, [Continuation(context, "1<image>")])


def test_a_choice_without_tokens_is_refused(model: LanguageModel) -> None:
    with refuses(RefusedError, "sampling.choice_without_tokens"):
        likelihoods(model, [Continuation("1+1=", "")])
