from __future__ import annotations

import pytest
import torch

from harness.models.tiny import tiny_tokenizer
from harness.rewards import Attempt, TotalReward
from harness.rewards.parts.steps import Process
from harness.rewards.total import token_at
from tests.harness.rewards.attempts import attempt, context, worked

STEPS = {"correct": 1.0, "process": 0.5}


def tokens_of(tried: list[Attempt]) -> torch.Tensor:
    """One token a character, and the end of the sequence; right-padded with 0."""
    tokenizer = tiny_tokenizer()
    rows = [torch.tensor([*tokenizer(attempt.text)["input_ids"], tokenizer.eos_token_id]) for attempt in tried]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def decode(tokens: object) -> str:
    return str(tiny_tokenizer().decode(tokens, skip_special_tokens=True))


@pytest.mark.parametrize(
    ("text", "share"),
    [("8,17#17", 1), ("8,18#18", 0.5), ("8#17", 1), ("9,18#17", 0), ("9,wait,8,17#17", 1), ("8,17,20#17", 2 / 3)],
)
def test_process_is_the_share_of_right_steps(text: str, share: float) -> None:
    assert Process().rewards([worked(text)], context(STEPS)) == pytest.approx([share])


@pytest.mark.parametrize("text", ["#17", "", "8,wait#17"])
def test_no_step_no_reward(text: str) -> None:
    assert Process().rewards([worked(text)], context(STEPS)) == [0]


def test_each_step_has_its_reward_where_it_ends() -> None:
    tried = [worked("8,17#17"), worked("9,17#17"), worked("#17"), worked("9,wait,8,17#17")]
    given = context(STEPS, objective={"credit": "steps"})
    rewards = TotalReward(given).at_steps(tried, given, tokens_of(tried), decode)
    assert rewards is not None
    expected = torch.full((4, 15), torch.nan)
    for place in [(0, 0), (0, 3), (1, 3), (3, 7), (3, 10)]:
        expected[place] = 0.5
    expected[1, 0] = 0
    assert torch.equal(rewards.isnan(), expected.isnan())
    assert torch.equal(rewards.nan_to_num(), expected.nan_to_num())


def test_a_step_ends_with_the_token_that_completes_it() -> None:
    pieces = ["8", ",1", "7,", "26", "#26", ""]

    def joined(tokens: object) -> str:
        return "".join(pieces[token] for token in tokens)  # type: ignore[attr-defined]

    completion = list(range(len(pieces)))
    assert [token_at(end, completion, joined) for end in (1, 2, 3, 4, 7, 10)] == [0, 1, 1, 2, 3, 4]


def test_a_task_without_steps_is_told() -> None:
    with pytest.raises(ValueError, match="gsm8k does not define steps"):
        Process().rewards([attempt()], context(STEPS, task="gsm8k"))
