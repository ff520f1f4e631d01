from __future__ import annotations

import pytest
import torch

from harness.engines.base import EngineMismatchError
from harness.engines.parity import BOUNDS, probe_sequences, require_parity
from harness.models.language_model import LanguageModel
from tests.refusals import refuses


def logps(language_model: LanguageModel, sequences: list[list[int]]) -> list[list[float]]:
    """Token by token, each after what stands before it."""
    with torch.inference_mode():
        return [
            [
                language_model.model(torch.tensor([sequence[:t]])).logits[0, -1].log_softmax(-1)[sequence[t]].item()
                for t in range(1, len(sequence))
            ]
            for sequence in sequences
        ]


def test_sequences_are_fixed_differ_in_length_and_fit(language_model: LanguageModel) -> None:
    sequences = probe_sequences(language_model.model)
    torch.manual_seed(7)
    assert probe_sequences(language_model.model) == sequences
    assert [len(sequence) for sequence in sequences] == [2, 17, 48]
    used = {token for sequence in sequences for token in sequence}
    vocab = language_model.model.config.vocab_size
    assert min(used) >= 0 and max(used) < vocab and len(used) > vocab / 2


def test_sequences_leave_room_in_a_short_context(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_model.model.config, "max_position_embeddings", 20)
    assert [len(sequence) for sequence in probe_sequences(language_model.model)] == [2, 17, 19]


def test_the_models_own_log_probs_pass(language_model: LanguageModel) -> None:
    sequences = [[3, 4], [5, 6, 7, 8]]
    assert require_parity(language_model.model, sequences, logps(language_model, sequences), "vLLM") < 1e-5


@pytest.mark.parametrize("off", [5 * BOUNDS["float32"], -0.5, float("nan"), float("inf")])
def test_others_do_not(language_model: LanguageModel, off: float) -> None:
    """One token in four is off: the mean over tokens, not over sequences, and of either sign."""
    sequences = [[3, 4], [5, 6, 7, 8]]
    wrong = logps(language_model, sequences)
    wrong[1][2] += off
    with refuses(EngineMismatchError, "engines.log_probs_differ_after_sync", engine="vLLM"):
        require_parity(language_model.model, sequences, wrong, "vLLM")


def test_the_refusal_has_both_numbers(language_model: LanguageModel) -> None:
    sequences = [[3, 4, 5]]
    wrong = [[logp + 0.12 for logp in row] for row in logps(language_model, sequences)]
    with refuses(EngineMismatchError, "engines.log_probs_differ_after_sync", bound=BOUNDS["float32"]) as raised:
        require_parity(language_model.model, sequences, wrong, "vLLM")
    assert raised.value.fields["difference"] == pytest.approx(0.12, abs=1e-5)


def test_bfloat16_rounds_more(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [[3, 4, 5]]
    rounded = [[logp + 0.125 for logp in row] for row in logps(language_model, sequences)]
    monkeypatch.setattr(type(language_model.model), "dtype", torch.bfloat16)
    assert require_parity(language_model.model, sequences, rounded, "vLLM") == pytest.approx(0.125, abs=1e-5)
