"""What is wrong with a search is said before its first trial."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import optuna
import pytest

from harness.config.search import Pruner
from harness.errors import GateError, RefusedError
from harness.plan import make_plan
from harness.plan.search_plan import make_search_plan
from harness.search.optuna_parts import make_pruner
from tests.harness.search.fake_cells import KNOBS, write_search
from tests.refusals import refuses

LR = "train.learning_rate"
CLIP = "objective.rule.clip_high"
RULE = "objective.rule.type"
MAX = "objective.rule.weight_max"
SWITCH: dict[str, Any] = {"train.optimizer_reset": {"categorical": [False, True]}}


def refused(path: Path, named: str, **options: Any) -> str:
    """Expect a refusal that names these: keys of the file, knobs and values."""
    with pytest.raises(RefusedError) as caught:
        make_search_plan(str(path), **options)
    told = str(caught.value).removeprefix(f"{path}: ")
    assert all(name in told for name in named.split()), told
    return told


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({}, "search.knobs"),
        ({"train.learning_rat": {"log": [1e-4, 1e-2]}}, f"train.learning_rat {LR}"),
        ({LR: {}}, LR),
        ({LR: {"log": [1e-4, 1e-2], "float": [0, 1]}}, f"{LR} float log"),
        ({LR: {"float": [1e-2, 1e-4]}}, f"{LR} 0.01 0.0001"),
        ({LR: {"float": [1e-2, 1e-2]}}, f"{LR} 0.01"),
        ({LR: {"log": [0, 1e-2]}}, f"{LR} log"),
        ({LR: {"float": [0, 1], "step": 2}}, f"{LR} step 2 1"),
        ({LR: {"log": [0.1, 1], "step": 0.1}}, f"{LR} step log"),
        ({"rollout.prompts_per_step": {"int": [4, 8], "step": 1.5}}, "rollout.prompts_per_step 1.5"),
        ({"rollout.prompts_per_step": {"int": [4, 9], "step": 2}}, "rollout.prompts_per_step 8"),
        ({LR: {"float": [0, 1], "step": 0.3}}, f"{LR} 0.9"),
        ({"eval.temperature": {"float": [0.5, 1.0]}}, "eval.temperature"),
        ({"train.lr_schedule": {"categorical": ["linear"]}}, "train.lr_schedule"),
        ({"train.lr_schedule": {"categorical": ["linear", "linear"]}}, "train.lr_schedule"),
        ({"rollout.temperature": {"categorical": [1, 1.0, 0.7]}}, "rollout.temperature 1 1.0"),
        ({LR: {"log": [1e-4, 1e-2], "steps": 3}}, f"{LR}.steps"),
        ({LR: {"log": [1e-4, 1e-2], "when": {"train.steps": [4]}}}, "train.steps"),
        (KNOBS | {CLIP: {"float": [0.2, 0.4], "when": {"train.updates_per_rollout": [8]}}}, f"{CLIP} 8"),
        ({LR: KNOBS[LR], "train.epochs": {"int": [1, 4], "when": {LR: [1e-3]}}}, LR),
        ({"train.epochs": {"int": [2, 6], "step": 2}, LR: KNOBS[LR] | {"when": {"train.epochs": [3]}}}, f"{LR} 3"),
        # A switch is no number.
        (SWITCH | {LR: KNOBS[LR] | {"when": {"train.optimizer_reset": [1]}}}, "train.optimizer_reset=1"),
        (SWITCH | {LR: KNOBS[LR] | {"when": {"train.optimizer_reset": [1.0]}}}, "train.optimizer_reset=1.0"),
        (
            {
                "rollout.temperature": {"categorical": [0.5, 1.0], "when": {LR: [1e-3]}},
                LR: {"categorical": [1e-3, 1e-2], "when": {"rollout.temperature": [1.0]}},
            },
            f"rollout.temperature {LR}",
        ),
        # The wrong type for its knob, at either end.
        ({"train.steps": {"float": [2.5, 4.5]}}, "train.steps"),
        ({LR: {"categorical": ["low", "high"]}}, f"{LR} 'low'"),
        ({LR: {"float": [-1, 1e-2]}}, f"{LR} -1"),
        ({"objective.aggregation": {"categorical": ["token_mean", "mean"]}}, "objective.aggregation 'mean'"),
        ({"train.optimizer_reset": {"int": [0, 1]}}, "train.optimizer_reset"),
    ],
)
def test_a_range_that_cannot_be_searched_is_refused(tmp_path: Path, knobs: Any, named: str) -> None:
    refused(write_search(tmp_path, {"knobs": knobs}), named)


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"objectives": ["eval.final.mean_tokens"]}, "mean_tokens"),
        ({"objectives": ["eval.final.pass@3"]}, "pass@3"),
        ({"objectives": ["eval.final.maths.pass@1"]}, "maths"),
        ({"objectives": ["eval.final.pass@1", "loss"]}, "loss"),
        ({"objectives": ["eval.final.pass@1", "eval.final.pass@1"]}, "pass@1"),
        ({"objectives": ["eval.final.pass@1", "eval.final.pass@2"]}, "pass@2"),
        ({"objectives": ["eval.final.pass@1", "generated_tokens"], "pruner": {"type": "median"}}, "median two"),
        ({"sampler": {"type": "grid"}}, "sampler.type 'grid'"),
        ({"pruner": {"type": "hyperband"}}, "pruner.type 'hyperband'"),
        ({"budget": {"trials": 0}}, "budget.trials 0"),
    ],
)
def test_a_search_that_cannot_be_run_is_refused(tmp_path: Path, section: Any, named: str) -> None:
    refused(write_search(tmp_path, section), named)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"ablate": [LR]}, "ablate search"),
        ({"co_changes": {"train.steps": "why"}}, "co_changes search"),
        ({"allow_noop": True}, "allow_noop search"),
        ({"compare": {"metric": "eval.final.pass@2"}}, "compare.metric search"),
        ({"compare": {"baseline": "default"}}, "compare.baseline search"),
        ({"arms": {"a": {}, "b": {}}}, "arms search"),
    ],
)
def test_what_a_search_would_not_read_is_refused(tmp_path: Path, fields: Any, named: str) -> None:
    refused(write_search(tmp_path, **fields), named)
    assert make_search_plan(str(write_search(tmp_path, compare={"margin_pp": 2.0}))).sweep.compare.margin_pp == 2.0


@pytest.mark.parametrize(
    "knobs",
    [
        # Steps may end at the high end.
        {"rollout.prompts_per_step": {"int": [4, 8], "step": 2}, LR: {"float": [0.1, 0.4], "step": 0.1}},
        # Keeping and masking differ with a KL penalty, in which a group of equal rewards takes part.
        {
            "objective.zero_std": {"categorical": ["keep", "mask", "drop"]},
            "objective.kl.where": {"categorical": ["none", "loss"]},
            "objective.kl.beta": {"float": [0.01, 0.1], "when": {"objective.kl.where": ["loss"]}},
        },
        # A condition on values within a range.
        {"train.epochs": {"int": [1, 4]}, CLIP: {"float": [0.2, 0.4], "when": {"train.epochs": [2, 3]}}},
    ],
)
def test_what_can_be_searched_passes(tmp_path: Path, knobs: Any) -> None:
    make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))


UPDATES = "train.updates_per_rollout"


@pytest.mark.parametrize(
    ("knobs", "code", "knob"),
    [
        ({CLIP: {"float": [0.2, 0.4]}, LR: KNOBS[LR]}, "plan.knob_never_acts", CLIP),
        # One that acts in a part of the search must be conditional.
        (KNOBS | {CLIP: {"float": [0.2, 0.4]}}, "plan.knob_inert_at_setting", CLIP),
        # A condition that never holds.
        (
            {
                "train.epochs": {"categorical": [1, 2]},
                UPDATES: {"categorical": [1, 2], "when": {"train.epochs": [1]}},
                LR: KNOBS[LR] | {"when": {UPDATES: [2], "train.epochs": [2]}},
            },
            "plan.knob_never_acts",
            LR,
        ),
        # A choice that needs another knob may do nothing.
        (
            {RULE: {"categorical": ["ppo_clip", "cispo"]}, MAX: {"float": [2, 5], "when": {RULE: ["cispo"]}}},
            "plan.knob_never_acts",
            RULE,
        ),
        (
            {"train.token_records_max_tokens": {"categorical": [0, 9]}},
            "plan.knob_never_acts",
            "train.token_records_max_tokens",
        ),
    ],
)
def test_a_knob_that_cannot_act_is_refused(tmp_path: Path, knobs: Any, code: str, knob: str) -> None:
    with refuses(GateError, code, knob=knob):
        make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))
    make_search_plan(str(write_search(tmp_path)))


@pytest.mark.parametrize("choices", list(permutations(["keep", "mask", "drop"])))
def test_two_choices_that_do_the_same_are_refused_in_any_order(tmp_path: Path, choices: Any) -> None:
    """With advantages of 0 in a group of equal rewards, masking it leaves what keeping it leaves."""
    knobs = {"objective.zero_std": {"categorical": list(choices)}}
    first, second = sorted(("keep", "mask"), key=choices.index)
    with refuses(GateError, "plan.equivalent_knob_values", knob="objective.zero_std", first=first, second=second):
        make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))
    knobs = {"objective.zero_std": {"categorical": [choice for choice in choices if choice != "mask"]}}
    make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))


def test_a_search_has_one_seed_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert make_search_plan(str(write_search(tmp_path))).seeds == [0]
    assert make_search_plan(str(write_search(tmp_path)), seeds=2).seeds == [0, 1]
    assert make_search_plan(str(write_search(tmp_path, seeds=[4]))).seeds == [4]


def test_each_verb_names_the_other_and_a_searched_knob_cannot_be_set(tmp_path: Path) -> None:
    with refuses(RefusedError, "plan.searched_knob_set", knob=LR):
        make_search_plan(str(write_search(tmp_path)), settings=[f"{LR}=1e-3"])
    with refuses(RefusedError, "plan.search_has_no_arms"):
        make_plan(str(write_search(tmp_path)))
    with refuses(RefusedError, "plan.arms_without_search", given="std_norm"):
        make_search_plan("std_norm")


def test_a_choice_may_need_what_is_drawn_because_of_it(tmp_path: Path) -> None:
    """cispo has no default for its weight_max; sapo's two temperatures need each other."""
    knobs = {
        RULE: {"categorical": ["ppo_clip", "cispo", "sapo"]},
        MAX: {"float": [2, 5], "when": {RULE: ["cispo"]}},
        "objective.rule.temperature_positive": {"float": [0.5, 2], "when": {RULE: ["sapo"]}},
        "objective.rule.temperature_negative": {"float": [0.5, 2], "when": {RULE: ["sapo"]}},
        "train.updates_per_rollout": {"categorical": [2, 4]},
    }
    plan = make_search_plan(str(write_search(tmp_path, {"knobs": knobs})))
    assert plan.default_values() is None  # one update is in the base
    base = {"algorithm": "grpo", "train.updates_per_rollout": 2}
    plan = make_search_plan(str(write_search(tmp_path, {"knobs": knobs}, base=base)))
    assert plan.default_values() == {RULE: "ppo_clip", "train.updates_per_rollout": 2}


def test_what_a_choice_needs_has_its_type_and_may_depend_on_the_base(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {
        RULE: {"categorical": ["ppo_clip", "cispo"]},
        UPDATES: {"categorical": [1, 2]},
        MAX: {"float": [2, 5], "when": {RULE: ["cispo"], UPDATES: [2]}},
    }
    make_search_plan(str(write_search(tmp_path, {"knobs": knobs}, base={"algorithm": "grpo", UPDATES: 2})))
    refused(write_search(tmp_path, {"knobs": knobs}, base={"algorithm": "grpo", UPDATES: 1}), MAX)
    knobs = {RULE: knobs[RULE], MAX: {"float": [-2, -1], "when": {RULE: ["cispo"]}}}
    refused(write_search(tmp_path, {"knobs": knobs}), f"{MAX} -2.0")


@pytest.mark.parametrize(
    ("spelled", "own", "drawn"),
    [
        ({"categorical": [0.7, 1]}, 1.0, 1),
        ({"categorical": [0.7, 1.0]}, 1.0, 1.0),
        ({"int": [1, 2]}, 1.0, 1),
        ({"float": [0.5, 2]}, 1.0, 1.0),
        ({"categorical": [0.7, 2]}, 1.0, None),
        ({"int": [1, 2]}, 1.5, None),
    ],
)
def test_the_default_of_a_number_is_drawn_as_its_range_spells_it(
    tmp_path: Path, spelled: Any, own: float, drawn: Any
) -> None:
    """Optuna tells 1 from 1.0 among choices."""
    base = {"algorithm": "grpo", "rollout.temperature": own}
    plan = make_search_plan(str(write_search(tmp_path, {"knobs": {"rollout.temperature": spelled}}, base=base)))
    assert repr(plan.default_values()) == repr(None if drawn is None else {"rollout.temperature": drawn})


@pytest.mark.parametrize(("value", "draws"), [(1.0, True), (1, True), (0.7, False)])
def test_a_condition_may_spell_a_number_otherwise(tmp_path: Path, value: Any, draws: bool) -> None:
    knobs = {
        "rollout.temperature": {"categorical": [0.7, 1]},
        LR: KNOBS[LR] | {"when": {"rollout.temperature": [value]}},
    }
    default = make_search_plan(str(write_search(tmp_path, {"knobs": knobs}))).default_values()
    assert default is not None and (LR in default) == draws


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, 5),
        ({"p_threshold": 0.25}, 4),
        ({"p_threshold": 0.5}, 3),
        ({"p_threshold": 0.01}, 8),
        ({"n_startup_steps": 6}, 7),
    ],
)
def test_wilcoxon_needs_seeds_enough_to_give_a_trial_up_before_the_last(
    tmp_path: Path, options: Any, needed: int
) -> None:
    path = str(write_search(tmp_path, {"pruner": {"type": "wilcoxon", "options": options}}))
    with refuses(RefusedError, "plan.too_few_seeds_to_prune", earliest=needed - 1, n_needed=needed):
        make_search_plan(path, seeds=needed - 1)
    make_search_plan(path, seeds=needed)
    # Optuna's own pruner, told of trials each worse than the best with every seed, gives up from then on.
    study = optuna.create_study(direction="maximize", pruner=make_pruner(Pruner(type="wilcoxon", options=options)))
    best, worse = study.ask(), study.ask()
    for seed in range(needed):
        best.report(1.0, seed)
    study.tell(best, 1.0)
    gives_up = []
    for seed in range(needed):
        worse.report(0.5 - 0.01 * seed, seed)
        gives_up.append(worse.should_prune())
    assert gives_up.index(True) == needed - 2


def test_a_threshold_below_which_no_p_lies_is_refused(tmp_path: Path) -> None:
    section = {"pruner": {"type": "wilcoxon", "options": {"p_threshold": 0}}}
    with refuses(RefusedError, "plan.p_threshold_not_positive", p_threshold=0):
        make_search_plan(str(write_search(tmp_path, section)), seeds=20)


@pytest.mark.parametrize("options", [{"p_threshold": "low"}, {"p_threshold": math.inf}, {"n_startup_steps": "two"}])
def test_options_that_optuna_refuses_are_left_to_it(tmp_path: Path, options: Any) -> None:
    pruner = make_search_plan(
        str(write_search(tmp_path, {"pruner": {"type": "wilcoxon", "options": options}}))
    ).search.pruner
    with pytest.raises(RefusedError, match=next(iter(options))):
        make_pruner(pruner)


def test_a_name_must_leave_room_for_that_of_the_confirmation(tmp_path: Path) -> None:
    make_search_plan(str(write_search(tmp_path, name=247 * "a")))
    with refuses(RefusedError, "plan.name_too_long", n_characters=248, most_characters=247):
        make_search_plan(str(write_search(tmp_path, name=248 * "a")))


@pytest.mark.parametrize(
    ("pruner", "every", "fits"),
    [("median", 0, False), ("asha", 1, True), ("median", 3, True), ("asha", 4, False), ("median", 4, False)],
)
def test_a_pruner_along_training_needs_evaluations_there(tmp_path: Path, pruner: str, every: int, fits: bool) -> None:
    """Of 4 steps; what is evaluated after the last is the final score."""
    path, settings = write_search(tmp_path, {"pruner": {"type": pruner}}), [f"eval.every={every}"]
    if fits:
        make_search_plan(str(path), settings=settings)
    else:
        with refuses(RefusedError, "plan.pruner_without_evaluations", pruner=pruner, every=every, steps=4):
            make_search_plan(str(path), settings=settings)


def test_the_longest_trial_decides_whether_there_is_something_to_prune_by(tmp_path: Path) -> None:
    steps = {"knobs": {"train.steps": {"int": [4, 10]}}, "pruner": {"type": "median"}}
    make_search_plan(str(write_search(tmp_path, steps)), settings=["eval.every=9"])
    with refuses(RefusedError, "plan.pruner_without_evaluations", every=10, steps=10):
        make_search_plan(str(write_search(tmp_path, steps)), settings=["eval.every=10"])
    steps = {"knobs": {"train.steps": {"categorical": [4, "ten"]}}, "pruner": {"type": "median"}}
    refused(write_search(tmp_path, steps), "train.steps 'ten'")
