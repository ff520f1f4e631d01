from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.training.prefix_attention import BLOCK_FILL, CompletionBlock, PrefixLayout


def layout() -> PrefixLayout:
    """Prompts 10 11 12 and 20; completions of 3, 1, 4 and 0 tokens, the second and third of the first prompt."""
    return PrefixLayout.of(
        prompts=torch.tensor([[10, 11, 12], [20, 0, 0]]),
        prompt_lengths=torch.tensor([3, 1]),
        prompt_of_row=torch.tensor([1, 0, 0, 1]),
        completions=torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 7, 8], [0, 0, 0, 0]]),
        lengths=torch.tensor([3, 1, 4, 0]),
    )


def test_every_token_that_predicts_something_is_there_once() -> None:
    made = layout()
    assert made.tokens.tolist() == [10, 11, 12, 20, 1, 2, 5, 6, 7]
    assert made.positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert made.tokens[made.predictors[0, :3]].tolist() == [20, 1, 2]
    assert made.tokens[made.predictors[1, :1]].tolist() == [12]
    assert made.tokens[made.predictors[2]].tolist() == [12, 5, 6, 7]


def test_completions_are_in_blocks_by_length_without_empty_ones() -> None:
    made = layout()
    assert [(block.start, block.lengths.tolist(), block.prompts.tolist()) for block in made.completions] == [
        (4, [2, 3], [1, 0])
    ]
    assert made.prompts.lengths.tolist() == [3, 1]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_blocks_hold_all_completions_and_little_padding(lengths: list[int]) -> None:
    made = PrefixLayout.of(
        torch.tensor([[9]]),
        torch.tensor([1]),
        torch.zeros(len(lengths), dtype=torch.int64),
        torch.zeros((len(lengths), max(1, *lengths)), dtype=torch.int64),
        torch.tensor(lengths),
    )
    fed = [length for block in made.completions for length in block.lengths.tolist()]
    assert fed == sorted(length - 1 for length in lengths if length > 1)
    assert len(made.tokens) == 1 + sum(fed)
    start = 1
    for block in made.completions:
        assert block.start == start
        start += block.tokens
        assert block.lengths.min() >= BLOCK_FILL * block.width
    assert len(made.completions) <= 7


def test_blocks_and_line_are_each_other_undone_also_for_gradients() -> None:
    made = layout()
    line = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    for block in [made.prompts, *made.completions]:
        padded = block.padded(line)
        assert padded.shape == (2, 3, 2)
        assert torch.equal(block.in_line(padded), line[block.start : block.start + block.tokens])
        assert torch.autograd.gradcheck(lambda line, block=block: block.padded(line), line)
        assert torch.autograd.gradcheck(lambda padded, block=block: block.in_line(padded), padded)
    assert made.prompts.padded(line)[1, 1:].abs().sum() == 0


def test_a_block_without_padding_is_a_view() -> None:
    line = torch.randn(7, 2)
    block = CompletionBlock(1, torch.tensor([3, 3]), torch.tensor([0, 0]))
    assert block.padded(line).data_ptr() == line[1:].data_ptr()
    assert torch.equal(block.in_line(block.padded(line)), line[1:])


def test_masks_in_full() -> None:
    made = layout()
    mask = made.attention_mask(made.completions[0], None)
    assert mask.shape == (2, 1, 3, 6)
    # The first row follows the prompt of one token, the second that of three.
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 1, 0], [1, 0, 0, 1, 1, 1]]
    assert mask[1, 0].int().tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
    assert made.prompt_mask(None) is None
    assert made.prompt_mask(3) is None


def test_masks_of_a_window() -> None:
    made = layout()
    mask = made.attention_mask(made.completions[0], 2)
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert mask[1, 0].int().tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert mask is made.attention_mask(made.completions[0], 2)
    prompts = made.prompt_mask(2)
    assert prompts is not None
    assert prompts[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
