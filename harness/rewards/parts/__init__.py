"""The shipped parts of the reward: every subclass of `RewardPart` with a name, in any module of this folder."""
