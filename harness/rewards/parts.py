"""The reward parts by name. Their weights are the knobs `reward.parts.<name>`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.rewards.attempt import RewardPart
from harness.rewards.formats import matches_format, reaches_answer
from harness.rewards.languages import language
from harness.rewards.learned import reward_model
from harness.rewards.lengths import kimi_length, magistral_length, overlong
from harness.rewards.steps import process
from harness.rewards.user_function import load_function
from harness.rewards.verdicts import correct, proxy_correct
from harness.rewards.verifier_free import majority, own_logp

PARTS: Mapping[str, RewardPart] = MappingProxyType(
    {
        "correct": correct,
        "format": matches_format,
        "reaches_answer": reaches_answer,
        "kimi_length": kimi_length,
        "magistral_length": magistral_length,
        "language": language,
        "process": process,
        "own_logp": own_logp,
        "majority": majority,
        "reward_model": reward_model,
    }
)
"""Those that `reward.parts` can name, besides functions of the user's own."""

IMPLIED: Mapping[str, RewardPart] = MappingProxyType({"proxy_correct": proxy_correct, "overlong": overlong})
"""Those that other knobs bring in: `reward.noise` and `objective.overlong`."""


def find_part(name: str) -> RewardPart:
    """The part of that name; a `module:function` is imported. Raises RefusedError if that fails."""
    return PARTS.get(name) or IMPLIED.get(name) or load_function(name)
