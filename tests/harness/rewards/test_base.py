"""What a reward part must have, told where it is defined; and that options of two parts do not collide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import plugins
from harness.config.reward import parts_with_options
from harness.errors import RefusedError

HEAD = "from harness.rewards import RewardPart\nclass Mine(RewardPart):\n"
REWARDS = "    def rewards(self, group, context): return [0.0] * len(group)\n"


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    yield
    plugins.use([], [])


def use(folder: Path, body: str) -> None:
    (folder / "my_part.py").write_text(HEAD + body, encoding="utf-8")
    plugins.use(["my_part"], [folder])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (REWARDS, "Mine: a reward part has a name"),
        ("    name = 'mine'\n", "Mine: a reward part has a name .* and the method `rewards`"),
        ("    name = 'mine'\n    rewards_steps = True\n" + REWARDS, "has the method `step_rewards`"),
        ("    name = 'mine'\n    half: float\n" + REWARDS, "the option half has no default"),
    ],
)
def test_a_part_that_could_not_be_used_is_refused(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(RefusedError, match=f"plugins: my_part cannot be imported .TypeError: .*{says}"):
        use(tmp_path, body)


@pytest.mark.parametrize("section", ["noise", "parts"])
def test_options_have_a_place_of_their_own(tmp_path: Path, section: str) -> None:
    use(tmp_path, f"    name = '{section}_too'\n    section = '{section}'\n    half: float = 0.5\n" + REWARDS)
    with pytest.raises(
        RefusedError, match=rf"{section}_too: its options would be called reward\.{section}\.\*, but that name"
    ):
        parts_with_options()
