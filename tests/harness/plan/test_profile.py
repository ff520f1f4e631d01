"""Profiles: where they are found, and the spread that their files say was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evals.yaml_file import load_yaml
from harness.errors import RefusedError
from harness.plan import make_plan
from harness.plan.profile import EXTENDS, MeasuredSpread, find_profile, profile_layer, read_profile
from harness.plan.sweep_file import KEPT, KEPT_PROFILE, SHIPPED
from harness.run.question import write_question
from tests.refusals import refuses


def test_a_profile_is_looked_for_beside_the_sweep_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "questions"
    folder.mkdir()
    (folder / "mine.yaml").write_text("description: a substrate\npaired_sd_pp: 0.8\ntrain: {steps: 3}\n")
    path = find_profile("mine.yaml", beside=folder / "question.yaml")
    assert path == folder / "mine.yaml"
    assert profile_layer(path).settings == {"train": {"steps": 3}}
    with refuses(RefusedError, "plan.no_such_file", what="profile", given="tniy"):
        find_profile("tniy", beside=folder / "question.yaml")


def spread(path: Path, text: str) -> MeasuredSpread | None:
    path.write_text(f"task: {{train: arithmetic}}\neval: {{problems: 200, samples: 16}}\n{text}", encoding="utf-8")
    return MeasuredSpread.of(path)


@pytest.mark.parametrize(
    ("settings", "measured_pp"),
    [
        (["eval.samples=4"], 1.06),
        ([], 0.80),
        (["eval.samples=64"], 0.81),
        (["eval.samples=8", "eval.problems=100"], 1.06),
    ],
)
def test_the_planned_spread_follows_the_evaluation(settings: list[str], measured_pp: float) -> None:
    """The first three were measured over 24 seeds; the last draws as many samples as the first."""
    tiny = MeasuredSpread.of(SHIPPED / "profiles" / "tiny.yaml")
    evaluation = make_plan("std_norm", settings=settings, seeds=1).first_spec.eval
    assert tiny is not None
    assert tiny.sd_pp_under(evaluation, "arithmetic") == pytest.approx(measured_pp, rel=0.02)


def test_all_of_a_spread_counts_as_sampling_where_its_part_or_the_number_of_problems_is_not_known(
    tmp_path: Path,
) -> None:
    evaluation = make_plan("std_norm", settings=["eval.problems=40", "eval.samples=4"], seeds=1).first_spec.eval
    known = spread(tmp_path / "mine.yaml", "paired_sd_pp: 0.8\n")
    assert known is not None
    assert known.sd_pp_under(evaluation.model_copy(update={"problems": 200}), "arithmetic") == pytest.approx(1.6)
    # Fewer problems than an unknown number are not taken for more.
    assert replace(known, problems=None).sd_pp_under(evaluation, "arithmetic") == pytest.approx(1.6)
    assert known.sd_pp_under(evaluation, "gsm8k") is None
    assert spread(tmp_path / "mine.yaml", "") is None


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ("paired_sd_pp: wide", "plan.not_percentage_points", "paired_sd_pp"),
        ("paired_sd_pp: 0.8\nsampling_sd_pp: 0", "plan.not_percentage_points", "sampling_sd_pp"),
        ("paired_sd_pp: 0.8\nsampling_sd_pp: 1.2", "plan.sampling_sd_too_large", "sampling_sd_pp"),
    ],
)
def test_a_spread_that_is_none_is_refused(text: str, code: str, key: str, tmp_path: Path) -> None:
    with refuses(RefusedError, code, path="mine.yaml", key=key):
        spread(tmp_path / "mine.yaml", text)


def profile(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_variant_states_only_what_differs_from_the_profile_that_it_extends(tmp_path: Path) -> None:
    lora = "lora: {type: lora, rank: 4, alpha: 8.0}"
    profile(
        tmp_path, "base", f"description: all\npaired_sd_pp: 0.8\nmodel: {{{lora}}}\ntrain: {{steps: 3, device: cpu}}\n"
    )
    variant = profile(
        tmp_path, "variant", "extends: base.yaml\ndescription: few\nmodel.lora.type: none\ntrain.steps: 2\n"
    )
    layer = profile_layer(variant)
    # The rank belongs to the kind of adapter that the variant puts away, and the spread to another substrate.
    assert layer.settings == {"model": {"lora": {"type": "none"}}, "train": {"steps": 2, "device": "cpu"}}
    assert layer.origin == str(variant) and read_profile(variant)["description"] == "few"
    assert MeasuredSpread.of(variant) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("extends: 3", "plan.extends_not_one_profile"),
        ("extends: tniy", "plan.in_profile"),
        ("extends: tiny-easy", "plan.extended_profile_extends_another"),
    ],
)
def test_a_variant_that_extends_no_profile_is_refused(text: str, code: str, tmp_path: Path) -> None:
    with refuses(RefusedError, code, path="variant.yaml"):
        profile_layer(profile(tmp_path, "variant", text))


def test_the_records_keep_a_variant_with_all_that_it_extends(tmp_path: Path) -> None:
    """They are asked again from there, when the extended profile may say something else."""
    plan = make_plan("std_norm", "tiny-hard", seeds=1)
    write_question(plan, tmp_path, "bench run std_norm")
    again = make_plan(str(tmp_path / "std_norm"))
    assert EXTENDS not in load_yaml(tmp_path / "std_norm" / KEPT / KEPT_PROFILE)
    assert [cell.hash for cell in again.cells] == [cell.hash for cell in plan.cells]
