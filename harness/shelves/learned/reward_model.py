"""A Bradley-Terry reward model: the starting model's decoder with a scalar head, trained on pairs of completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.run.learning.base import CompletionScorer
from harness.shelves.learned.parts import LearnedReward
from harness.training.batch import Batch
from harness.training.demonstrations import in_turn
from harness.training.optimizer import micro_batches
from harness.training.reference import frozen_copy
from harness.training.sequences import BatchPart, Sequences
from harness.training.supervised import Progress, train_supervised

MICRO_BATCH_TOKENS = 4096
"""Padded tokens in one forward pass."""
WEIGHTS_FILE = "reward_model.safetensors"


class RewardModel(nn.Module):
    """score = (w . h - mean) / std with h the hidden state at a completion's last token.

    The head w starts at 0 and has no bias, since no difference of scores could show one. mean and std are 0 and 1 until
    `standardise` sets them. All weights are frozen except in `train_reward_model`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, language_model: LanguageModel) -> None:
        """Copy the decoder of a language model that holds the starting weights, in float32."""
        super().__init__()
        self._pad_token_id = language_model.pad_token_id
        self.decoder = frozen_copy(language_model.model.get_decoder()).float()
        hidden_size = language_model.model.config.get_text_config().hidden_size
        self.head = nn.Linear(hidden_size, 1, bias=False, device=language_model.model.device)
        nn.init.zeros_(self.head.weight).requires_grad_(False)
        self.register_buffer("mean", torch.zeros((), device=language_model.model.device))
        self.register_buffer("std", torch.ones((), device=language_model.model.device))

    def forward(self, sequences: Sequences, rows: Tensor) -> Tensor:
        """Return w . h [len(rows)] of the rows (int64 indices), on the model's device, with its gradient."""
        # A pass leaves out the last token, which predicts nothing. Its hidden state is the one needed here, so one more
        # token is appended.
        longer = Sequences(sequences.prompts, functional.pad(sequences.completions, (0, 1)), sequences.lengths + 1)
        part = BatchPart.of([self.decoder], longer, rows, self._pad_token_id, last=sequences.lengths)
        hidden = part.hidden(self.decoder)
        scores: Tensor = self.head(hidden[torch.arange(len(rows), device=hidden.device), part.rows["last"]])
        return scores[:, 0]

    @torch.inference_mode()
    def scores(self, sequences: Sequences) -> Tensor:
        """Return the score of every row, [N] float32 on the CPU.

        A completion that occurs several times after one prompt is scored once, so equal ones tie exactly.
        """
        rows, same_as = sequences.distinct_rows
        found = torch.full((len(same_as),), torch.nan)
        for batch in sequences.micro_batches(rows, MICRO_BATCH_TOKENS):
            found[batch] = ((self(sequences, batch) - self.mean) / self.std).float().cpu()
        return found[same_as]

    def standardise(self, sequences: Sequences) -> None:
        """Give the scores of these completions mean 0 and standard deviation 1.

        Raises RefusedError if they are all equal or not finite: then the training went wrong.
        """
        # `scores` applies mean and std, so they are neutral while the raw scores are computed.
        self.mean.zero_()
        self.std.fill_(1.0)
        scores = self.scores(sequences).double()
        if not (torch.isfinite(scores).all() and scores.std() > 0):
            raise RefusedError("shelves.learned.scores_useless")
        self.mean.copy_(scores.mean())
        self.std.copy_(scores.std())

    def save(self, folder: Path) -> None:
        """Write weights, mean and std into the folder."""
        (folder / WEIGHTS_FILE).write_bytes(
            save({name: tensor.clone().contiguous() for name, tensor in self.state_dict().items()})
        )

    @classmethod
    def load(cls, folder: Path, language_model: LanguageModel) -> RewardModel:
        """Load what `save` wrote, bit for bit, on the language model's device.

        Only the language model's shape matters. Raises RefusedError for a file that is not what was written.
        """
        model = cls(language_model)
        try:
            model.load_state_dict(load_file(folder / WEIGHTS_FILE))
        except (SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise RefusedError("shelves.learned.reward_model_damaged", folder=folder, reason=reason) from error
        return model


@dataclass(frozen=True)
class RewardModelScorer(CompletionScorer):
    """Scores completions by a reward model, for the reward part `reward_model`."""

    reward_model: RewardModel
    account: Mapping[str, object] = field(default_factory=dict)

    def scores(self, batch: Batch, seed: int, step: int) -> list[float]:
        scores: list[float] = self.reward_model.scores(batch.sequences).tolist()
        return scores


def train_reward_model(
    language_model: LanguageModel, sequences: Sequences, pairs: Tensor, options: LearnedReward, on_step: Progress
) -> RewardModel:
    """Train a reward model on pairs [P, 2] int64: rows of the sequences, the better completion first.

    Loss: the mean of -log sigmoid(score(better) - score(worse)) over the pairs of a step. That is the negative
    log-likelihood of Bradley and Terry (1952, Biometrika 39:324), as in 2203.02155, eq. 1. The pairs come in a new
    order each epoch. on_step(step, steps, loss in nats a pair): called after every step. The scores are not
    standardised yet.
    """
    model = RewardModel(language_model)
    weights = list(model.parameters())
    for weight in weights:
        weight.requires_grad_(True)
    order = in_turn(range(len(pairs)), options.seed)

    def losses() -> Iterator[Tensor]:
        batch = pairs[list(islice(order, options.batch_size))]
        for chosen in _micro_batches(sequences, batch):
            # Transposed, all better rows come before all worse ones, as the view below needs them.
            better, worse = model(sequences, batch[chosen].T.flatten()).view(2, -1)
            yield -functional.logsigmoid(better - worse).sum() / len(batch)

    train_supervised(weights, options.learning_rate, options.steps, losses, on_step)
    for weight in weights:
        weight.requires_grad_(False).grad = None
    return model


def _micro_batches(sequences: Sequences, pairs: Tensor) -> list[Tensor]:
    """Split pairs [P, 2] into batches (int64 indices) whose sides together fit the budget."""
    prompt_tokens = [len(sequences.prompts[row]) for row in pairs[:, 0].tolist()]
    # Each pair is two rows as wide as its longer side, hence half the budget.
    longer = sequences.lengths[pairs].amax(1).tolist()
    return micro_batches(torch.arange(len(pairs)), prompt_tokens, longer, MICRO_BATCH_TOKENS // 2)
