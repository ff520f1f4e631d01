"""What each format reads, held against the numbers that the tool itself worked out."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import RefusedError
from harness.shelves.imports.base import FORMATS, ImportedRun, format_of
from harness.shelves.imports.cells import evaluations, final, gathered
from harness.shelves.imports.sources import Pattern, read_sources, settle_names
from reports.shelves.laws import fit_entropy_law
from tests.refusals import refuses

MADE = Path(__file__).parent / "made"
WANTED = ("reward/mean", "entropy/full", "len/mean", "loss", "grad_norm")


def read(*sources: str | Path, runs: str | None = None) -> dict[tuple[str, int | None], ImportedRun]:
    found, _ = read_sources([*map(str, sources)])
    settle_names(found, None if runs is None else Pattern(runs), None, None)
    cells, _ = gathered(found)
    return cells


def test_lm_eval_samples_give_the_scores_that_lm_eval_reports() -> None:
    cells = read(f"{MADE}/lm_eval/{{arm}}/seed{{seed}}/...")
    assert [*cells] == [(arm, seed) for arm in ("base", "tuned") for seed in range(3)]
    for (arm, seed), run in cells.items():
        (path,) = (MADE / "lm_eval" / arm / f"seed{seed}").glob("results_*.json")
        reported = json.loads(path.read_text())["results"]["sums"]
        assert [*final(run)] == ["sums,strict", "sums,flexible"]
        for task, one in final(run).items():
            metrics = one.metrics([1])
            assert metrics["pass@1"] == reported[f"exact_match,{task.partition(',')[2]}"] == metrics["exact_match"]
        assert run.config["eval.sums.num_fewshot"] == 1
        assert run.samples[0].prompt is not None and run.samples[0].prompt.endswith("What is 1+2?\nA:")
    assert len({final(run)["sums,strict"].metrics([1])["pass@1"] for run in cells.values()}) > 1


def test_inspect_logs_give_the_accuracy_that_inspect_reports() -> None:
    with refuses(RefusedError, "shelves.imports.runs_contradict", cell="mockllm/model", what="accuracy of arithmetic"):
        read(MADE / "inspect_ai")
    cells = read(f"{MADE}/inspect_ai/{{arm}}/...")
    scores = {}
    for arm, _ in cells:
        (one,) = final(cells[arm, None]).values()
        metrics = one.metrics([1, 2])
        assert (one.task, one.n, len(one.problems)) == ("arithmetic", 2, 4)
        assert metrics["pass@1"] == metrics["accuracy"]
        assert metrics["mean_tokens"] == 4 and metrics["truncated_frac"] == 0
        scores[arm] = metrics["pass@1"]
    assert scores["base"] != scores["tuned"]


def test_a_trainer_state_gives_the_curves_that_it_logged() -> None:
    cells = read(f"{MADE}/trl/{{arm}}/seed{{seed}}/...")
    assert [*cells] == [("fast", 0), ("slow", 0)]
    rows = json.loads((MADE / "trl/fast/seed0/checkpoint-6/trainer_state.json").read_text())["log_history"]
    run = cells["fast", 0]
    assert [*run.steps] == [1, 2, 3, 4, 5, 6]
    training = {row["step"]: row for row in rows if "reward" in row}
    assert {step: fields["reward/mean"] for step, fields in run.steps.items()} == {
        step: row["reward"] for step, row in training.items()
    }
    assert all(fields["len/mean"] == training[step]["completions/mean_length"] for step, fields in run.steps.items())
    assert run.steps[1]["theirs/num_tokens"] == training[1]["num_tokens"]
    assert [(one.step, one.given["reward"]) for one in evaluations(run)] == [
        (None if row["step"] == 6 else row["step"], row["eval_reward"]) for row in rows if "eval_reward" in row
    ]


def test_of_several_checkpoints_the_last_counts(tmp_path: Path) -> None:
    state = json.loads((MADE / "trl/fast/seed0/checkpoint-6/trainer_state.json").read_text())
    shutil.copytree(MADE / "trl/fast/seed0", tmp_path / "run")
    (tmp_path / "run/checkpoint-10").mkdir()  # before checkpoint-6 by name
    history = [*state["log_history"], {"step": 10, "reward": 0.5, "eval_reward": 0.25}]
    document = state | {"global_step": 10, "log_history": history}
    (tmp_path / "run/checkpoint-10/trainer_state.json").write_text(json.dumps(document))
    ((name, run),) = read(tmp_path).items()
    assert (name, max(run.steps), final(run)["results"].given["reward"]) == (("run", None), 10, 0.25)


@pytest.mark.slow
def test_tensorboard_has_the_numbers_of_the_same_run_s_trainer_state() -> None:
    pytest.importorskip("tensorboard")
    logged, state = (read(f"{MADE}/{tool}/{{arm}}/seed{{seed}}/...") for tool in ("tensorboard", "trl"))
    assert [*logged] == [*state]
    for cell, run in logged.items():
        assert [*run.steps] == [*state[cell].steps]
        for step, fields in run.steps.items():
            for name in WANTED:
                assert fields[name] == pytest.approx(state[cell].steps[step][name], rel=1e-6), (step, name)
        assert final(run)["results"].given["reward"] == pytest.approx(final(state[cell])["results"].given["reward"])
    both = read(f"{MADE}/tensorboard/{{arm}}/seed{{seed}}/...", f"{MADE}/trl/{{arm}}/seed{{seed}}/...")
    assert [*both] == [*state]


VERL = """\
\x1b[36m(main_task pid=5)\x1b[0m {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2,
\x1b[36m(pid=7)\x1b[0m something else
\x1b[36m(main_task pid=5)\x1b[0m                                  'ppo_epochs': 1}},\x1b[36m(W pid=6)\x1b[0m in one line
\x1b[36m(main_task pid=5)\x1b[0m  'trainer': {'experiment_name': 'a'}}
\x1b[36m(main_task pid=5)\x1b[0m "Initial validation metrics: {'test_score/openai/gsm8k': 0.125}"
"""


def test_verl_s_steps_count_from_1_in_logs_of_all_versions(tmp_path: Path) -> None:
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    old.write_text(
        VERL + "(main_task pid=5) step:0 - actor/entropy_loss:0.500 - critic/score/mean:0.250\n"
        "(main_task pid=5) step:1 - actor/entropy_loss:4e-1 - val/test_score/openai/gsm8k:0.300 - "
        "critic/score/mean:nan\n"
    )
    new.write_text(
        "step:0 - val-core/openai/gsm8k/acc/mean@1:np.float64(0.125)\n"
        "step:1 - actor/entropy:0.500 - critic/score/mean:np.float32(0.250)\n"
        "step:2 - actor/entropy:0.400 - val-core/openai/gsm8k/acc/mean@1:0.300 - critic/score/mean:0.350\n"
    )
    for path, metric in ((old, "score"), (new, "acc/mean@1")):
        ((_, run),) = read(path).items()
        assert {step: fields["entropy/full"] for step, fields in run.steps.items()} == {1: 0.5, 2: 0.4}
        assert run.steps[1]["reward/mean"] == 0.25
        assert [(one.task, one.step, one.given[metric]) for one in evaluations(run)] == [
            ("openai/gsm8k", 0, 0.125),
            ("openai/gsm8k", None, 0.3),
        ]
    ((_, run),) = read(old).items()
    assert "reward/mean" not in run.steps[2]
    assert run.config == {
        "actor_rollout_ref.actor.clip_ratio": 0.2,
        "actor_rollout_ref.actor.ppo_epochs": 1,
        "trainer.experiment_name": "a",
    }


def test_public_logs_of_verl_hold_curves_that_the_entropy_law_fits() -> None:
    if "BENCH_EXTERNAL" not in os.environ:
        pytest.skip("BENCH_EXTERNAL names no folder with verl_logs")
    cells = read(Path(os.environ["BENCH_EXTERNAL"]) / "verl_logs")
    ends = {"0.567": (435, 0.5685975609756098), "0.538": (435, 0.5190548780487805), "0.640": (106, 0.621)}
    for (arm, seed), run in cells.items():
        n_steps, score = ends.pop(arm[-5:])
        assert (seed, len(run.steps), max(run.steps)) == (None, n_steps, n_steps)
        assert final(run)["openai/gsm8k"].given == {"score": score}
        law = fit_entropy_law(
            *zip(*((one["entropy/full"], one["reward/mean"]) for one in run.steps.values()), strict=True)
        )
        assert law.a > 0 and law.r2 > 0.5
    assert not ends


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[str]:
    from mlflow import MlflowClient

    store = tmp_path / "mlflow.db"
    client = MlflowClient(f"sqlite:///{store}")
    wanted = client.create_experiment("grpo", artifact_location=str(tmp_path / "artifacts"))
    for arm, seed in (("a", 0), ("b", 0), ("b", 1)):
        run = client.create_run(wanted, run_name=f"{arm}-seed{seed}").info.run_id
        client.log_param(run, "learning_rate", "0.1" if arm == "a" else "0.2")
        client.log_param(run, "seed", str(seed))
        for step in (1, 2):
            client.log_metric(run, "train/reward", 0.25 * step, step=step)
        client.log_metric(run, "eval/accuracy", 0.5 + 0.1 * seed, step=2)
        client.set_terminated(run)
    yield f"{store}#grpo"


@pytest.mark.slow
def test_an_experiment_of_mlflow_gives_its_runs(experiment: str) -> None:
    cells = read(experiment, runs="{arm}-seed{seed}")
    assert [*cells] == [("a", 0), ("b", 0), ("b", 1)]
    run = cells["b", 1]
    assert [fields["reward/mean"] for fields in run.steps.values()] == [0.25, 0.5]
    assert final(run)["results"].given == {"accuracy": 0.6}
    assert run.config == {"learning_rate": "0.2", "seed": 1}
    with refuses(RefusedError, "shelves.imports.no_experiment", experiment="grp", nearest="; did you mean grpo?"):
        read_sources([experiment[:-1]])


def test_exports_of_wandb_give_curves_and_summaries(tmp_path: Path) -> None:
    chart, table = tmp_path / "chart.csv", tmp_path / "runs.csv"
    chart.write_text(
        '"Step","a-0 - train/reward","a-0 - train/reward__MIN","a-0 - train/reward__MAX","b-0 - train/reward"\n'
        '"1","0.25","0.2","0.3",""\n"2","0.5","0.5","0.5","0.75"\n'
    )
    table.write_text(
        '"Name","State","Created","learning_rate","train/reward","eval/accuracy"\n'
        '"a-0","finished","2026-01-01","0.1","0.5","0.6"\n"b-0","finished","2026-01-01","0.2","0.75","0.7"\n'
    )
    cells = read(chart, table, runs="{arm}-{seed}")
    assert {cell: run.steps for cell, run in cells.items()} == {
        ("a", 0): {1: {"reward/mean": 0.25}, 2: {"reward/mean": 0.5}},
        ("b", 0): {2: {"reward/mean": 0.75}},
    }
    assert [final(run)["results"].given for run in cells.values()] == [{"accuracy": 0.6}, {"accuracy": 0.7}]
    assert [run.config for run in cells.values()] == [{"learning_rate": "0.1"}, {"learning_rate": "0.2"}]
    table.write_text(table.read_text().replace("finished", "running", 1))
    with refuses(RefusedError, "shelves.imports.wandb_run_unfinished", number=2, state="running"):
        read_sources([str(table)])


def test_every_made_file_is_of_one_format() -> None:
    expected = {"lm_eval": "lm-eval", "inspect_ai": "inspect_ai", "trl": "trl", "tensorboard": "tensorboard"}
    for path in (path for path in MADE.rglob("*") if path.is_file() and path.suffix != ".md"):
        found = format_of(str(path))
        assert found is not None and found.name == expected[path.relative_to(MADE).parts[0]]
    assert {*expected.values()} < {*FORMATS.names()}


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("trl/fast/seed0/checkpoint-6/trainer_state.json", ('"log_history"', '"log"'), "not_a_trainer_state"),
        ("trl/fast/seed0/checkpoint-6/trainer_state.json", ('"step": 1', '"steps": 1'), "not_a_trainer_state"),
        ("lm_eval/base/seed0/samples_*.jsonl", ('"doc_id": 2', '"doc": 2'), "lm_eval_row_lacks_key"),
        ("lm_eval/base/seed0/samples_*.jsonl", ('"exact_match": 0.0', '"exact_match": 0.5'), "lm_eval_without_verdict"),
        ("lm_eval/base/seed0/results_*.json", ('"results"', '"outcome"'), "lm_eval_without_results"),
        ("lm_eval/base/seed0/results_*.json", ('"results"', '"results'), "lm_eval_results_not_json"),
    ],
)
def test_a_file_that_its_tool_did_not_write_so_is_refused(
    tmp_path: Path, name: str, change: tuple[str, str], code: str
) -> None:
    (path,) = MADE.glob(name)
    changed = path.read_text().replace(*change)
    assert changed != path.read_text()
    (tmp_path / path.name).write_text(changed)
    with refuses(RefusedError, f"shelves.imports.{code}") as refused:
        read_sources([str(tmp_path / path.name)])
    assert str(tmp_path / path.name) in str(refused.value)


def test_metrics_around_training_may_be_of_numpy_and_not_finite(tmp_path: Path) -> None:
    log = tmp_path / "verl.log"
    log.write_text(
        "step:1 - actor/entropy:0.5\n"
        "\"Final validation metrics: {'val-core/a/acc/mean@1': np.float64(0.25), 'val-aux/a/reward/mean@1': nan}\"\n"
    )
    ((_, run),) = read(log).items()
    assert final(run)["a"].given == {"acc/mean@1": 0.25}
    log.write_text(log.read_text().replace("np.float64(0.25)", "np.float64(0.25"))
    with refuses(RefusedError, "shelves.imports.verl_line_unreadable"):
        read(log)


def test_a_log_of_inspect_that_is_damaged_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    (made,) = (MADE / "inspect_ai/base").glob("*.eval")
    shutil.copy(made, tmp_path / "whole.eval")
    with zipfile.ZipFile(deflated := tmp_path / "deflated.zip", "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("header.json", json.dumps({"status": "success"}))
    for content, error in (
        (deflated.read_bytes(), "KeyError"),
        (made.read_bytes()[: made.stat().st_size // 2], "BadZipFile"),
        (_with_damage(made, "samples/"), "BadZipFile"),
        (_with_damage(deflated, "header.json"), "error"),
    ):
        (tmp_path / "damaged.eval").write_bytes(content)
        with refuses(RefusedError, "shelves.imports.not_an_inspect_log", error_type=error):
            read_sources([str(tmp_path)])


def _with_damage(log: Path, beginning: str) -> bytes:
    """The log's bytes, with the start of an entry's content overwritten."""
    with zipfile.ZipFile(log) as opened:
        entry = next(entry for entry in opened.infolist() if entry.filename.startswith(beginning))
    start, content = entry.header_offset + 30 + len(entry.filename), log.read_bytes()
    return content[:start] + b"\xff" * 12 + content[start + 12 :]
