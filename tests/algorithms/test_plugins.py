"""The examples of presets and rules in docs/extending.md, used from a folder outside the package."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from algorithms import (
    RULES,
    Objective,
    TokenBatch,
    active_knobs,
    acts_without_advantage,
    describe,
    differences_that_cannot_act,
    formula,
    objective_knobs,
    policy_loss,
    preset,
    presets,
    with_overrides,
)
from algorithms.diagnostics import treatment
from harness import plugins
from harness.cli.app import app
from harness.config.hashing import semantic_hash
from harness.config.knobs import active, governor, spec_knobs
from harness.errors import RefusedError
from harness.plan.gate import check_gate, find_noops
from harness.training.optimizer import DivergedError
from harness.training.policy_update import PolicyUpdate
from tests.harness.config.cases import spec
from tests.harness.training import rollouts
from tests.harness.training.test_policy_update import spec as update_spec
from tests.harness.training.test_policy_update import update
from tests.refusals import refuses

EXAMPLES = Path(__file__).parents[1] / "examples" / "extending"
RATIOS = torch.tensor([[0.5, 0.9, 1.0, 1.3, 2.0]] * 2, dtype=torch.float64)
ADVANTAGES = torch.tensor([2.0, -3.0], dtype=torch.float64)


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    yield
    plugins.use([], [])


@pytest.fixture
def use(tmp_path: Path) -> Any:
    """Copies an example into an empty folder and lets it be a plug-in."""

    def used(name: str, **replacements: str) -> plugins.UserModule:
        copy = Path(shutil.copy(EXAMPLES / f"{name}.py", tmp_path))
        for old, new in replacements.items():
            copy.write_text(copy.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        (source,) = plugins.use([name], [tmp_path])
        return source

    return used


def bench(*words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def spo(**knobs: object) -> Objective:
    return preset("grpo", Objective, **{"rule.type": "spo", **knobs})


def test_a_preset_is_known_wherever_ours_are(use: Any) -> None:
    use("preset")
    assert presets("policy_gradient")[-1] == "lab_grpo"
    assert describe("lab_grpo").companions == {"train.updates_per_rollout": 4}
    assert preset("lab_grpo") == preset("dr_grpo", **{"rule.clip_high": 0.28, "aggregation": "token_mean"})
    assert spec({"algorithm": "lab_grpo", "objective.scale": "batch_std"}).policy_gradient.rule == PPO_CLIP_HIGHER
    assert "lab_grpo" in [row["name"] for row in bench("ls", "algorithms")]
    shown = bench("show", "lab_grpo", "--set", "objective.rule.clip_high=0.3")
    assert (shown["implementations"], shown["knobs"]["rule.clip_high"]) == ("", 0.3)
    differs = bench("diff", "dr_grpo", "lab_grpo")
    assert [one["knob"] for one in differs["differs"]] == ["objective.rule.clip_high", "objective.aggregation"]
    assert list(differs["cannot_act_in_one_step"]) == ["objective.rule.clip_high"]
    plugins.use([], [])
    with refuses(ValueError, "bench.unknown_name", noun="algorithm", name="'lab_grpo'"):
        preset("lab_grpo")


PPO_CLIP_HIGHER = preset("grpo", Objective, **{"rule.clip_high": 0.28}).rule


PPO_CLIP_HIGHER = preset("grpo", Objective, **{"rule.clip_high": 0.28}).rule


FROM_OURS = """
from typing import Literal
from algorithms import Preset, preset, presets
from algorithms.rules.weighted import Weighted
assert len(presets()) >= 40
theirs = Preset(name="theirs", objective=preset("grpo", **{"rule.clip_high": 0.3}), summary="", source="")

class Late(Weighted):
    type: Literal["late"] = "late"
"""


def test_a_preset_may_be_made_of_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FROM_OURS, encoding="utf-8")
    plugins.use(["mine"], [tmp_path])
    assert preset("theirs", **{"rule.type": "late"}) == preset("grpo", **{"rule.type": "late"})


def test_an_installed_package_may_make_a_preset_of_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is executed by the search for presets, in which it asks for presets itself."""
    (tmp_path / "their_presets.py").write_text(FROM_OURS, encoding="utf-8")
    information = tmp_path / "their_presets-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-presets\nVersion: 1\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(f"[{plugins.GROUP}]\npresets = their_presets\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._registered.cache_clear()
    plugins._forget()
    try:
        assert "theirs" in presets()
        assert preset("theirs", **{"rule.type": "late"}) == preset("grpo", **{"rule.type": "late"})
    finally:
        monkeypatch.undo()
        plugins._registered.cache_clear()
        plugins._forget()


def test_a_rule_adds_its_knobs(use: Any) -> None:
    use("rule")
    objective = spo(**{"rule.epsilon": 0.5})
    assert active_knobs(objective)["rule.epsilon"] == 0.5
    assert objective_knobs()["rule.epsilon"].description.startswith("spo: ")
    assert "objective.rule.epsilon" in spec_knobs()
    assert governor("objective.rule.epsilon") == "objective.rule.type"
    assert with_overrides(objective, {"rule.type": "weighted"}) == preset("grpo", **{"rule.type": "weighted"})
    assert Objective.model_validate_json(objective.model_dump_json()) == objective
    with refuses(ValueError, "value", path="rule.epsilon"):
        spo(**{"rule.epsilon": -1})
    with refuses(ValueError, "clash", path="rule.epsilon"):
        preset("grpo", **{"rule.epsilon": 0.5})
    listed = bench("ls", "rules")[-1]
    assert (listed["name"], listed["description"]) == ("spo", str(type(objective.rule).__doc__))


def test_a_rule_without_a_loss_is_refused_where_it_is_defined(use: Any) -> None:
    with refuses(RefusedError, "plugins.cannot_import", name="rule", error_type="TypeError"):
        use("rule", **{"def loss": "def loss_of_a_token"})


def test_a_rule_trains_by_its_formula(use: Any) -> None:
    """Loss and gradient against the closed form: d loss / d log pi = (-A + |A| (r - 1) / epsilon) r."""
    use("rule")
    objective = spo(**{"rule.epsilon": 0.5, "aggregation": "seq_mean_token_sum"})
    logp = RATIOS.log().requires_grad_()
    batch = TokenBatch(logp, torch.zeros_like(RATIOS), torch.ones_like(RATIOS), ADVANTAGES)
    loss = policy_loss(objective, batch)
    advantages = ADVANTAGES[:, None]
    expected = -advantages * RATIOS + advantages.abs() * (RATIOS - 1) ** 2
    torch.testing.assert_close(loss.value.detach(), expected.sum() / 2)
    (gradient,) = torch.autograd.grad(loss.value, logp)
    torch.testing.assert_close(gradient, (-advantages + advantages.abs() * (RATIOS - 1) / 0.5) * RATIOS / 2)


@pytest.mark.slow
def test_a_rule_trains_a_model(use: Any) -> None:
    """Its first optimiser step is that of any rule with slope 1, its second one is its own."""
    use("rule")
    report = update({"objective.rule.type": "spo"})[1]
    assert report.metrics["grad_norm"] == update()[1].metrics["grad_norm"]
    assert {"clip/low_frac_any_sign", "clip/high_frac_sign_aware"} <= set(report.metrics)
    steps = [{"objective.rule.type": "spo", "train.epochs": 2, "objective.rule.epsilon": eps} for eps in (0.01, 0.5)]
    once, again, other = (update(settings)[1].metrics["grad_norm"] for settings in (steps[0], *steps))
    assert once == again != other


LOSS = "return -advantages * ratio + advantages.abs() * (ratio - 1) ** 2 / (2 * self.epsilon)"
TENSOR = "rule_gives_no_tokens"
FAULTY_LOSSES: dict[str, tuple[str, dict[str, object]]] = {
    "(-advantages * ratio).mean()": (TENSOR, {"came": "torch.float32 of shape []"}),
    "(-advantages * ratio).mean(1, keepdim=True)": (TENSOR, {"came": "torch.float32 of shape [12, 1]"}),
    "(-advantages * ratio).T": (TENSOR, {"came": "torch.float32 of shape [9, 12]"}),
    "(-advantages * ratio).long()": (TENSOR, {"came": "torch.int64 of shape [12, 9]"}),
    "0.0": (TENSOR, {"came": "float", "kind": "floats", "shape": [12, 9]}),
    "-advantages * ratio.detach()": ("rule_trains_nothing", {}),
    "-advantages * ratio.detach().requires_grad_()": ("rule_trains_nothing", {}),
    "-advantages * ratio / (ratio - ratio)": ("rule_not_finite", {"what": "loss"}),
    "advantages * (ratio - 1).abs().sqrt()": ("rule_not_finite", {"what": "the gradient of loss"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", FAULTY_LOSSES)
def test_a_rule_that_gives_no_loss_of_tokens_is_refused_before_a_step(use: Any, loss: str) -> None:
    code, fields = FAULTY_LOSSES[loss]
    source = use("rule", **{LOSS: f"return {loss}"})
    policy = rollouts.model()
    before = copy.deepcopy(policy.state_dict())
    training = PolicyUpdate(policy, update_spec({"objective.rule.type": "spo"}), rollouts.PAD)
    with refuses(RefusedError, f"algorithms.{code}", rule="spo", path=str(source.path), **fields):
        training.run(rollouts.rollout(policy), step=1)
    assert all(torch.equal(before[name], weight) for name, weight in policy.state_dict().items())


def test_a_rule_without_any_gradient_at_these_rewards_is_none_of_the_faults(use: Any) -> None:
    use("rule", acts_without_advantage="unknown")
    assert update({"objective.rule.type": "spo"}, [1.0] * len(rollouts.REWARDS))[1].metrics["grad_norm"] == 0


def test_what_is_not_finite_later_or_for_another_reason_has_diverged(use: Any) -> None:
    """That is a result of the run: the cell is scored and flagged."""
    use("rule")
    policy = rollouts.model()
    batch = rollouts.rollout(policy)
    next(policy.parameters()).data.fill_(torch.nan)
    with pytest.raises(DivergedError):
        PolicyUpdate(policy, update_spec({"objective.rule.type": "spo"}), rollouts.PAD).run(batch, step=1)
    # Every ratio is 1 but for rounding in the first optimiser step, and none is in the second.
    use("rule", **{LOSS: "return -advantages * ratio / ((ratio - 1).abs().max() < 1e-5)"})
    policy = rollouts.model()
    training = PolicyUpdate(
        policy, update_spec({"objective.rule.type": "spo", "train.epochs": 2, "train.learning_rate": 0.1}), rollouts.PAD
    )
    with pytest.raises(DivergedError):
        training.run(rollouts.rollout(policy), step=1)


BATCH = TokenBatch(RATIOS.log(), torch.zeros_like(RATIOS), torch.ones_like(RATIOS), ADVANTAGES)
FAULTY_METHODS = {
    "clip_log_ratios": "(self, log_ratio, advantages): return log_ratio.sum(1, keepdim=True)",
    "bounded_ratio": "(self, ratio, log_ratio): return ratio.mean()",
    "beyond_bounds": "(self, ratio, advantages): return (ratio > 1).any(1, keepdim=True)",
    "clip_metrics": "(self, ratio, advantages): return {'mine': (ratio > 1).any()}",
    "treatment": "(self, ratio, advantages): return ratio > 1, (ratio > 1).any()",
}


@pytest.mark.parametrize("method", FAULTY_METHODS)
def test_what_else_a_rule_gives_is_of_tokens_too(use: Any, method: str) -> None:
    bounds = "return 1 - self.epsilon, 1 + self.epsilon"
    use("rule", **{bounds: f"{bounds}\n\n    def {method}{FAULTY_METHODS[method]}"})
    select = {"select.type": "clip_cov", "select.cov_low": -9.0} if method == "beyond_bounds" else {}
    with refuses(RefusedError, "algorithms.rule_gives_no_tokens", method=method):
        loss = policy_loss(spo(**select), BATCH)
        loss.metrics, treatment(loss.trace)


def test_diagnostics_and_records_of_tokens_ask_the_rule(use: Any) -> None:
    use("rule")
    loss = policy_loss(spo(**{"aggregation": "token_mean"}), BATCH)
    assert loss.metrics["clip/high_frac_sign_aware"] == loss.metrics["clip/low_frac_any_sign"] == pytest.approx(0.2)
    clipped, masked = treatment(loss.trace)
    assert clipped.tolist() == [[False, False, False, True, True], [True, False, False, False, False]]
    assert not masked.any()
    assert "0.4" in formula(spo())["token loss"]


def test_the_gate_and_the_guard_ask_the_rule(use: Any) -> None:
    use("rule")
    both = {"objective.rule.type": "spo"}
    arms = {name: spec(both, {"objective.rule.epsilon": epsilon}) for name, epsilon in (("near", 0.1), ("far", 1))}
    assert list(check_gate(arms, [], {}).violations) == ["objective.rule.epsilon"]
    assert check_gate({"clip": spec(), **arms}, ["objective.rule.type", "objective.rule.epsilon"], {}).ok
    (noop,) = find_noops(arms)
    assert noop.refused
    assert not acts_without_advantage(spo())
    assert differences_that_cannot_act(spo(), spo(**{"rule.epsilon": 0.5}), 2) == {}
    first_step = differences_that_cannot_act(spo(), preset("grpo", Objective), 1)
    assert {"rule.type", "rule.epsilon", "rule.clip_low"} <= set(first_step)


def test_of_a_rule_that_says_nothing_of_itself_the_guard_claims_nothing(use: Any) -> None:
    use("rule", inert_at_ratio_one="unknown", slope_at_ratio_one="unknown", acts_without_advantage="unknown2")
    assert differences_that_cannot_act(spo(), spo(**{"rule.epsilon": 0.5}), 1) == {}
    assert differences_that_cannot_act(spo(), preset("grpo", Objective), 1).keys() == {
        "rule.clip_low",
        "rule.clip_high",
        "rule.dual_clip",
    }
    assert set(differences_that_cannot_act(spo(), spo(**{"sequence_penalty": 0.1}), 1)) == {"sequence_penalty"}
    assert acts_without_advantage(spo()), "so no completion is left out of the forward pass"


def test_the_hash_is_of_the_rules_source(use: Any) -> None:
    settings = {"objective.rule.type": "spo"}
    ours = semantic_hash(spec())
    source = use("rule")
    assert RULES.source("spo") == source
    assert semantic_hash(spec()) == ours
    before = semantic_hash(spec(settings))
    use("rule", **{"1.0": "1.00"})
    assert semantic_hash(spec(settings)) != before
    assert active(spec(settings))["objective.rule.type"] == "spo"
