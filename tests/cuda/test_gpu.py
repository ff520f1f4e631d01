"""On a real GPU, where there is one: the kernel that draws tokens, and the cells that are otherwise rehearsed."""

from __future__ import annotations

import pytest
import torch

from harness.engines.torch.decoding import exponential_noise
from tests.cuda.rehearse import VARIANTS, main
from tests.cuda.test_rehearsal import assert_alike

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (3, 7), (257, 1024), (5, 1025), (300, 151_936)])
def test_the_kernel_draws_what_torch_draws(rows: int, vocabulary: int) -> None:
    """Bit for bit the same noise: a token whose noise were rounded otherwise would seldom change the draw, so all of
    many draws must agree. A third of the tokens has probability 0."""
    from harness.engines.torch.cuda_noise import first_arrivals

    generator = torch.Generator("cuda").manual_seed(vocabulary)
    logits = 3 * torch.randn(rows, vocabulary, generator=generator, device="cuda")
    logits[:, 1::3] = -torch.inf
    keys = torch.randint(-(2**62), 2**62, (rows,), generator=generator, device="cuda")
    probabilities = logits.softmax(-1)
    for position in (0, 5, torch.tensor([2047], device="cuda")):
        drawn = first_arrivals(probabilities, keys, position)
        assert torch.equal(drawn, (exponential_noise(keys, position, vocabulary) / probabilities).argmin(-1))
    probabilities[0, -1] = torch.nan
    assert first_arrivals(probabilities, keys, 0)[0] == vocabulary - 1, "as torch's argmin"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_cell_as_on_the_cpu(name: str) -> None:
    """Kernels round otherwise than a CPU does. In bfloat16, that can draw other tokens after the first step."""
    (result,) = main(2, [name], real=True)
    assert result["cpu"]["state"] == result["cuda"]["state"] == "done"
    assert_alike(result["cuda"]["steps"], result["cpu"]["steps"], rounds=True)
