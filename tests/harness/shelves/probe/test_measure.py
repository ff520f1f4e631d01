"""The whole measurement, against gradients that are known in closed form."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evals.prompts import get_template
from harness.errors import RefusedError
from harness.models.language_model import LanguageModel
from harness.models.start import StartingPoint
from harness.run.prompts import training_prompts
from harness.shelves.probe.design import Design, ProbePoint, make_design
from harness.shelves.probe.findings import estimate_rows, findings
from harness.shelves.probe.measure import Pool, ProbeMeasurement, draw_pool, frozen_policy, measure
from harness.training.checkpoint import Checkpoint, save_checkpoint
from tests.harness.shelves.probe.files import PROBE, write_probe_file
from tests.harness.shelves.probe.toy import earns
from tests.refusals import refuses

pytestmark = pytest.mark.slow

GROUP = 2
ONE_TOKEN: dict[str, Any] = {
    "base": {
        "rollout.prompts_per_step": 16,
        "rollout.samples_per_prompt": GROUP,
        "rollout.max_completion_tokens": 1,
        "task.pool": 24,
        "reward.parts.correct": 0.0,
        "reward.parts.tests.harness.shelves.probe.toy:first_token": 1.0,
    },
    "objectives": {
        "leave_one_out": {"algorithm": "reinforce", "objective.baseline": "leave_one_out"},
        "no_baseline": {"algorithm": "reinforce", "objective.baseline": "none"},
        "group_std": {"algorithm": "reinforce", "objective.baseline": "group_mean", "objective.scale": "group_std"},
    },
    "group_sizes": [GROUP],
    "batch_sizes": [],
    "completions": 2048,
    "reference": {"prompts": 512, "samples": 4},
}


def quiet(done: int, total: int, remark: str) -> None:
    pass


def measured(design: Design) -> tuple[dict[str, Any], ProbeMeasurement]:
    measurement = measure(design, frozen_policy(design.reference, None), quiet)
    return findings(design, measurement), measurement


def rows(document: dict[str, Any], *point: int) -> dict[str, Any]:
    found = document["points"]
    return {row["objective"]: row for row in found if (row["group_size"], row["batch_size"]) == point}


def exact_gradients(design: Design) -> tuple[Tensor, Tensor]:
    """The gradients of the expected reward and of what `group_std` estimates, as those of losses, over prompts and all
    first tokens.

    When two completions have different rewards, their advantages are 1 / sqrt 2 and its negative, whatever the
    rewards are. Where a prompt's completions earn something with chance q, the mean over the other completion is that
    of (1 - q) / sqrt 2 and -q / sqrt 2: the gradient of q / sqrt 2.
    """
    spec = next(iter(design.points.values()))["leave_one_out"]
    policy: LanguageModel = StartingPoint().get(spec, spec.model.source)
    template = get_template(spec.task.template)
    problems = training_prompts(spec, {})
    prompts = [policy.encode(template.render(problem.problem)) for problem in problems]
    logps = torch.stack([policy.model(torch.tensor([prompt])).logits[0, -1].log_softmax(0) for prompt in prompts])
    texts = [policy.decode([token]) for token in range(logps.shape[1])]
    earned = torch.tensor([[earns(problem, text) for text in texts] for problem in problems])
    trained = [weight for weight in policy.model.parameters() if weight.requires_grad]
    found = []
    for worth in (earned, (earned > 0) / 2**0.5):
        loss = -(logps.exp() * worth).sum(1).mean()
        flat = [part.reshape(-1) for part in torch.autograd.grad(loss, trained, retain_graph=True)]
        found.append(torch.cat(flat))
    return found[0], found[1]


@pytest.fixture(scope="module")
def one_token(tmp_path_factory: pytest.TempPathFactory) -> tuple[Design, dict[str, Any]]:
    design = make_design(str(write_probe_file(tmp_path_factory.mktemp("toy"), **ONE_TOKEN)))
    return design, measured(design)[0]


def test_gradients_known_in_closed_form_are_found(one_token: tuple[Design, dict[str, Any]]) -> None:
    design, document = one_token
    true, with_std = exact_gradients(design)
    cosine = float(torch.nn.functional.cosine_similarity(true, with_std, dim=0))
    assert cosine < 0.95, "the bias must be large enough to be seen"
    found = rows(document, GROUP, 16 * GROUP)

    assert document["reference"]["norm"] == pytest.approx(float(true.norm()), rel=0.15)
    assert found["group_std"]["mean_norm"]["value"] == pytest.approx(float(with_std.norm()), rel=0.15)
    assert found["leave_one_out"]["mean_norm"]["value"] == pytest.approx(float(true.norm()), rel=0.15)
    for name, truth in (("group_std", cosine), ("leave_one_out", 1.0), ("no_baseline", 1.0)):
        interval = found[name]["cosine"]
        assert interval["low"] < truth < interval["high"], name
        assert interval["high"] - interval["low"] < 0.7
    difference = found["group_std"]["cosine_difference"]
    assert difference["low"] < cosine - 1 < difference["high"] < 0, "biased, and told so"


def test_estimates_of_one_direction_are_told_to_be_so_and_noise_falls(tmp_path: Path) -> None:
    design = make_design(str(write_probe_file(tmp_path)))
    document, measurement = measured(design)
    assert list(design.points) == [ProbePoint(2, 16), ProbePoint(4, 16), ProbePoint(4, 64)]
    for point in design.points:
        found = rows(document, *point)
        one, other = found["leave_one_out"], found["group_mean"]
        assert other["cosine_difference"] == pytest.approx({"value": 0, "low": 0, "high": 0}, abs=1e-4)
        assert other["noise_ratio"] == pytest.approx({"value": 1, "low": 1, "high": 1}, abs=1e-3)
        assert other["estimate_cosine"]["value"] == pytest.approx(one["estimate_cosine"]["value"], rel=1e-4)
        shrunk = (point.group_size - 1) / point.group_size
        assert other["mean_norm"]["value"] == pytest.approx(shrunk * one["mean_norm"]["value"], rel=1e-3)
        assert one["cosine_difference"] is one["noise_ratio"] is None
        assert one["estimates"] == 256 // point.batch_size
        third = found["no_baseline"]
        multiple = third["noise_to_signal"]["value"] / one["noise_to_signal"]["value"]
        assert third["noise_ratio"]["value"] == pytest.approx(multiple) != pytest.approx(1)
    small, large = (rows(document, 4, size)["no_baseline"]["noise_to_signal"]["value"] for size in (16, 64))
    assert large == pytest.approx(small / 4, rel=0.3)

    listed = estimate_rows(measurement)
    assert len(listed) == 3 * (16 + 16 + 4)
    of_one = [row for row in listed if (row["objective"], row["group_size"]) == ("no_baseline", 2)]
    assert [row["estimate"] for row in of_one] == list(range(16))
    mean = sum(row["cosine"] or math.nan for row in of_one) / 16
    assert mean == pytest.approx(rows(document, 2, 16)["no_baseline"]["estimate_cosine"]["value"])


SMALL = {"completions": 64, "batch_sizes": [], "reference": {"prompts": 32, "samples": 4}}


def test_the_same_seed_gives_the_same_numbers_and_progress_counts_to_the_end(tmp_path: Path) -> None:
    once, again = (measured(make_design(str(write_probe_file(tmp_path, **SMALL)))) for _ in range(2))
    assert once[0] == again[0]
    assert estimate_rows(once[1]) == estimate_rows(again[1])
    told: list[tuple[int, int]] = []
    design = make_design(str(write_probe_file(tmp_path, **SMALL, seed=1)))
    other = measure(design, frozen_policy(design.reference, None), lambda done, total, _: told.append((done, total)))
    assert findings(design, other)["reference"] != once[0]["reference"]
    assert {total for _, total in told} == {128 + 3 * 64}
    assert told == sorted(told) and told[-1][0] == 128 + 3 * 64


def test_the_weights_can_be_those_of_a_cell(tmp_path: Path) -> None:
    design = make_design(str(write_probe_file(tmp_path)))
    start = frozen_policy(design.reference, None).model.state_dict()
    moved = {name: weight + 1 for name, weight in start.items()}
    save_checkpoint(tmp_path / "cell" / "checkpoints", Checkpoint(3, 10, moved, {}, {}))
    loaded = frozen_policy(design.reference, tmp_path / "cell").model.state_dict()
    assert all(torch.equal(loaded[name], moved[name]) for name in moved)


def test_a_cell_whose_weights_cannot_be_probed_is_refused(tmp_path: Path) -> None:
    design = make_design(str(write_probe_file(tmp_path)))
    with refuses(RefusedError, "shelves.probe.no_checkpoint"):
        frozen_policy(design.reference, tmp_path / "nothing")
    adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    for weight, code in (("other", "weights_do_not_fit"), (adapter, "checkpoint_of_adapters")):
        cell = tmp_path / code
        save_checkpoint(cell / "checkpoints", Checkpoint(3, 10, {weight: torch.zeros(2)}, {}, {}))
        with refuses(RefusedError, f"shelves.probe.{code}"):
            frozen_policy(design.reference, cell)


def test_the_reference_is_drawn_apart_and_group_sizes_share_their_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[Pool] = []

    def kept(*given: Any) -> Pool:
        pools.append(draw_pool(*given))
        return pools[-1]

    monkeypatch.setattr("harness.shelves.probe.measure.draw_pool", kept)
    design = make_design(str(write_probe_file(tmp_path, **SMALL, group_sizes=[2, 4])))
    measure(design, frozen_policy(design.reference, None), quiet)

    reference, pairs, fours = (pool.batch for pool in pools)
    prompts = [[group[0].id for group in batch.by_group(batch.problems)[:16]] for batch in (reference, pairs, fours)]
    assert prompts[0] != prompts[1] == prompts[2]
    for prompt in range(16):
        row, length = 4 * prompt, int(fours.sequences.lengths[4 * prompt])
        assert torch.equal(fours.sequences.completions[row, :length], pairs.sequences.completions[2 * prompt, :length])


def test_completions_that_cannot_be_scored_are_refused(tmp_path: Path) -> None:
    base = {**PROBE["base"], "reward.parts.tests.harness.shelves.probe.toy:unscorable": 1.0}
    design = make_design(str(write_probe_file(tmp_path, base=base)))
    with refuses(RefusedError, "shelves.probe.no_reward", completions=256):
        measure(design, frozen_policy(design.reference, None), quiet)
