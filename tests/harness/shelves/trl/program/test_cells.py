"""Short cells that TRL trains: they learn from what bench would, as bench would, and go on after a stop."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch

from evals.tasks import get_task
from harness import plugins
from harness.config.resolve import Layer, resolve
from harness.config.run_spec import RunSpec
from harness.engines.base import Completions, make_engine
from harness.models.language_model import load_model
from harness.models.start import StartingPoint
from harness.plan import make_plan
from harness.records import CellRecord
from harness.records.files import read_json, read_jsonl, write_json
from harness.run.learning.rollouts import Rollouts
from harness.run.sweep import cell_job
from harness.run.worker import run_job
from harness.shelves.trl.program.__main__ import main, on_prompts
from harness.shelves.trl.trainers import ProgramArguments
from harness.trainers.contract import ProgramConfig
from harness.trainers.process import ProcessGroup
from harness.training.batch import Batch, filter_rows
from harness.training.policy_update import PolicyUpdate
from tests.harness.run.small import SETTINGS
from tests.harness.run.test_worker import ignore

pytestmark = pytest.mark.slow
SHORT = {
    "train.steps": 3,
    "train.warmup_steps": 2,
    "train.weight_decay": 0.1,
    "train.checkpoint_every": 2,
    "eval.every": 0,
    "eval.samples": 1,
    "eval.problems": 4,
}
STD_EPS = {sweep: {"objective.scale_eps": 1e-4} for sweep in ("trainers_grpo", "trainers_dapo")}
OFFLINE = {"rollout.sampler": "initial", "pairs.pairing": "all"}


def spec_of(settings: dict[str, Any], trainer: dict[str, Any] | None = None) -> RunSpec:
    own = {} if trainer is None else {"trainer": {"type": "trl", **trainer}}
    return resolve([Layer("small", SETTINGS | SHORT), Layer("test", own | settings)], seed=1)


def shipped(sweep: str, **settings: object) -> dict[str, RunSpec]:
    """The arms of a shipped sweep, as short cells."""
    smaller = {name: value for name, value in SETTINGS.items() if name.startswith("rollout.")} | SHORT | settings
    return dict(
        make_plan(sweep, "tiny", [f"{name}={value}" for name, value in (smaller | {"eval.k": [1]}).items()]).arms
    )


def run(spec: RunSpec, home: Path) -> CellRecord:
    """The cell, done, as a job in this process."""
    record = CellRecord.at(home / "s" / "cells" / f"{spec.trainer.type}-s1-0123456789")
    record.path.mkdir(parents=True)
    write_json(record.path / "spec.json", spec.model_dump(mode="json"))
    state, reason = run_job(cell_job(record, spec, home), home, StartingPoint(), ignore, None)
    assert state == "done", f"{reason}\n{record.log.read_text()}"
    return record


class InThisProcess(ProcessGroup):
    """Runs TRL's program to its end in this process: a new one would first import TRL and torch."""

    def __init__(self, argv: Sequence[str], folder: str | None, env: Mapping[str, str], log: Path) -> None:
        self._log, self._begin = log, log.stat().st_size if log.exists() else 0
        with log.open("a") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            run_program(argv[-1])

    def exit_code(self) -> int:
        return 0

    def ask_to_stop(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def run_program(config: str) -> None:
    """Run TRL's program on a config file."""
    with patch.dict(os.environ), patch("sys.argv", ["program", config]), warnings.catch_warnings():
        main()


def run_here(spec: RunSpec, home: Path) -> CellRecord:
    """The cell, done, with its program in this process."""
    with patch("harness.run.program_cell.ProcessGroup", InThisProcess):
        return run(spec, home)


@pytest.fixture(scope="module", autouse=True)
def _without_plugins() -> Iterator[None]:
    """The program sets those of its config file."""
    yield
    plugins.use([], [])


@pytest.fixture(scope="module")
def two_updates(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    """A cell of GRPO whose program was a process of its own."""
    settings = {"algorithm": "grpo", "train.updates_per_rollout": 2, "train.steps": 4}
    return run(spec_of(settings, {}), tmp_path_factory.mktemp("two_updates"))


@pytest.fixture(scope="module")
def on_completions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CellRecord]:
    """The cell of a shipped sweep, or of RLOO, trained when it is first asked for."""

    @functools.cache
    def cell_of(asked: str) -> CellRecord:
        # TRL has no setting for what it adds to the std of rewards.
        arm = spec_of({"algorithm": asked}, {}) if asked == "rloo" else shipped(asked, **STD_EPS.get(asked, {}))["trl"]
        return run_here(arm, tmp_path_factory.mktemp(asked))

    return cell_of


@pytest.fixture(scope="module")
def on_pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, CellRecord]]:
    """The cells that bench and TRL train with an algorithm on pairs, trained when they are first asked for."""

    @functools.cache
    def cells_of(algorithm: str) -> dict[str, CellRecord]:
        settings = {"algorithm": algorithm, **OFFLINE, "train.steps": 4}
        arms = (
            shipped("trainers_dpo", **{"train.steps": 4})
            if algorithm == "dpo"
            else {"bench": spec_of(settings), "trl": spec_of(settings, {})}
        )
        home = tmp_path_factory.mktemp(algorithm)
        return {"bench": run(arms["bench"], home), "trl": run_here(arms["trl"], home)}

    return cells_of


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_on_pairs_it_trains_as_bench_does(algorithm: str, on_pairs: Callable[[str], dict[str, CellRecord]]) -> None:
    """The pairs are the same, so each step is, up to rounding: its rate, its loss, its gradient, and the weights after
    it, of which the next step's numbers come."""
    own, theirs = on_pairs(algorithm).values()
    assert len(own.read_steps()) == 4
    for ours, of_trl in zip(own.read_steps(), theirs.read_steps(), strict=True):
        assert ours["generated_tokens"] == of_trl["generated_tokens"] > 0
        for name in ("loss", "grad_norm", "learning_rate", "entropy/full", "rewards/margin", "logps/chosen_sum"):
            assert of_trl[name] == pytest.approx(ours[name], rel=1e-4, abs=1e-6), (ours["step"], name)


@pytest.mark.parametrize("asked", ["trainers_grpo", "trainers_dr_grpo", "trainers_dapo", "rloo"])
def test_on_its_completions_it_takes_the_gradient_that_bench_takes(
    asked: str, on_completions: Callable[[str], CellRecord]
) -> None:
    """Bench's rewards, loss and gradient of the first step's completions, as the program recorded them."""
    cell = on_completions(asked)
    spec = RunSpec.model_validate(cell.spec)
    steps, rows = cell.read_steps(), read_jsonl(cell.path / "program" / "e0001" / "rollouts.jsonl")
    assert [row["generated_tokens"] for row in steps] == sorted(row["generated_tokens"] for row in steps)
    assert [row["learning_rate"] for row in steps] == pytest.approx([1.5e-4, 3e-4, 3e-4])
    prompts = read_jsonl(cell.path / "program" / "prompts.jsonl")
    order = [row["problem_id"] for row in prompts if row["step"] == 1]
    drawn = [row for row in rows if row["step"] == 1]
    assert [row["problem_id"] for row in drawn] == [name for name in order for _ in range(4)]

    start = StartingPoint().for_training(spec, spec.model.source)
    limit = spec.rollout.max_completion_tokens
    completions = [start.encode_completion(row["text"])[:limit] for row in drawn]
    assert sum(map(len, completions)) == steps[0]["generated_tokens"]
    problems = {problem.id: problem for problem in get_task(spec.task.train).split("train").load()}
    lengths = torch.tensor([len(one) for one in completions])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in completions], batch_first=True)
    ended = torch.tensor([one[-1] in start.eos_token_ids for one in completions])
    as_drawn = Completions(tokens, torch.zeros(tokens.shape), lengths, ~ended)
    batch = Batch.of_completions([row["tokens"] for row in prompts if row["step"] == 1], as_drawn, 0, limit)
    batch = replace(batch, problems=[problems[row["problem_id"]] for row in drawn])
    batch = Rollouts(spec, start, make_engine(spec.rollout, start)).reward(batch, 1)
    assert batch.rewards.tolist() == pytest.approx([row["reward"] for row in drawn])
    initial = StartingPoint().get(spec, spec.model.source).model
    update = PolicyUpdate(start.model, spec, start.pad_token_id, initial, None)
    metrics = update.run(filter_rows(spec.policy_gradient, batch), 1).metrics
    assert steps[0]["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-4)
    if spec.policy_gradient.kl.where == "none":  # TRL reports the loss after the KL in its own way
        assert steps[0]["loss"] == pytest.approx(metrics["loss"], abs=1e-6)
    assert steps[0]["reward/mean"] == pytest.approx(metrics.get("reward/mean", batch.rewards.mean().item()))


@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
def test_after_a_stop_it_goes_on_as_if_there_had_been_none(
    algorithm: str, two_updates: CellRecord, on_pairs: Callable[[str], dict[str, CellRecord]], tmp_path: Path
) -> None:
    """On one machine: TRL's checkpoint holds the optimiser, the rates and the state of every random generator."""
    cell = two_updates if algorithm == "grpo" else on_pairs("dpo")["trl"]
    first = cell.path / "program" / "e0001"
    unbroken, config = read_jsonl(first / "metrics.jsonl"), read_json(first / "config.json")
    stopped, resumed = tmp_path / "stopped", tmp_path / "resumed"
    start({**config, "output": str(stopped), "budget": {"steps": 2}})
    *_, last, saved = read_jsonl(stopped / "metrics.jsonl")
    done = {name: last[name] for name in ("step", "generated_tokens", "trained_tokens")}
    start({**config, "output": str(resumed), "resume": str(stopped / saved["checkpoint"]), "done": done})
    later = [row for row in unbroken if row["step"] > 2 and "checkpoint" not in row]
    found = [row for row in read_jsonl(resumed / "metrics.jsonl") if "checkpoint" not in row]
    for row in (*later, *found):
        row.pop("step_time", None)
        row.pop("num_tokens")  # TRL counts them from each start on
    assert [row["step"] for row in found] == [3, 4]
    assert found == later


def start(config: dict[str, Any]) -> None:
    output = Path(config["output"])
    output.mkdir()
    write_json(output / "config.json", config)
    run_program(str(output / "config.json"))


def test_two_processes_share_a_step(tmp_path: Path) -> None:
    """Under accelerate, on two CPU processes: one row a step, each prompt once, all completions counted."""
    document = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
    document += "num_machines: 1\nmachine_rank: 0\nmixed_precision: 'no'\nmain_training_function: main\n"
    (tmp_path / "two.yaml").write_text(document)
    plugins.use([], [tmp_path])
    try:
        launched = {"launch": "accelerate", "accelerate_config": "two.yaml"}
        cell = run(spec_of({"algorithm": "grpo"}, launched), tmp_path)
    finally:
        plugins.use([], [])
    rows = read_jsonl(cell.path / "program" / "e0001" / "rollouts.jsonl")
    prompts = read_jsonl(cell.path / "program" / "prompts.jsonl")
    assert len(cell.read_steps()) == 3 and len(rows) == 3 * 16
    for step in (1, 2, 3):
        asked = {row["problem_id"] for row in prompts if row["step"] == step}
        of_step = [row for row in rows if row["step"] == step]
        assert {row["problem_id"] for row in of_step} == asked and len(of_step) == 16
        texts = [row["text"] for row in of_step]
        assert texts[:8] != texts[8:], "each process draws with noise of its own"


class _Vllm:
    """Stands in for vLLM: it draws tokens by the seeds it is asked for, and keeps them by call."""

    calls: list[list[int | None]]

    def __init__(self, **_: Any) -> None:
        self.llm_engine = self.reset_prefix_cache = MagicMock()  # takes the weights

    def generate(self, prompts: list[Any], sampling_params: Any, **_: Any) -> list[Any]:
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        _Vllm.calls.append([params.seed for params in each])
        return [self._output(prompt, params) for prompt, params in zip(prompts, each, strict=True)]

    def _output(self, prompt: Any, params: Any) -> Any:
        rng = random.Random(params.seed)
        tokens = [rng.randrange(10) for _ in range(params.max_tokens)]
        logprobs = [{token: SimpleNamespace(rank=1, logprob=-1.0)} for token in tokens]
        outputs = [SimpleNamespace(token_ids=tokens, logprobs=logprobs)]
        return SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=outputs)


def _sampling_params(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"seed": None, **given})


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_with_vllm_the_noise_is_of_the_seed_and_the_steps_done(
    algorithm: str,
    two_updates: CellRecord,
    on_completions: Callable[[str], CellRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trl.generation import vllm_generation

    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "LLM", _Vllm, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", _sampling_params, raising=False)
    cell = two_updates if algorithm == "grpo" else on_completions("rloo")
    spec, steps = RunSpec.model_validate(cell.spec), len(cell.read_steps())
    config = read_json(cell.path / "program" / "e0001" / "config.json")
    config["args"]["settings"] |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.5}

    def seeds(name: str, seed: int, resume: str | None = None) -> list[list[int | None]]:
        """The seeds of each rollout batch, as they reach vLLM."""
        _Vllm.calls = []
        args = {**config["args"], "settings": {**config["args"]["settings"], "seed": seed}}
        done = config["done"] if resume is None else {"step": 2, "generated_tokens": 0, "trained_tokens": 0}
        given = {**config, "args": args, "output": str(tmp_path / name), "resume": resume, "done": done}
        (tmp_path / name).mkdir()
        with patch.dict(os.environ):  # TRL tells vLLM its rank there
            config_file = ProgramConfig.model_validate(given)
            arguments = ProgramArguments.model_validate(args)
            trainer = on_prompts(config_file, arguments, spec, load_model(f"path:{config['model']}"))
            trainer.train(resume_from_checkpoint=resume)
        return _Vllm.calls

    whole, again, other = seeds("whole", 1), seeds("again", 1), seeds("other", 2)
    every = [seed for call in whole for seed in call]
    assert [len(call) for call in whole] == [16] * steps
    assert None not in every and len({*every}) == 16 * steps, "each completion has noise of its own"
    assert again == whole and not {*every} & {seed for call in other for seed in call}
    rows = read_jsonl(tmp_path / "whole" / "metrics.jsonl")
    (saved,) = [row["checkpoint"] for row in rows if row["step"] == 2 and "checkpoint" in row]
    assert seeds("resumed", 1, str(tmp_path / "whole" / saved)) == whole[2:]
