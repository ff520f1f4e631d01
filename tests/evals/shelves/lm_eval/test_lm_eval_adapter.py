from __future__ import annotations

import functools
import json
import logging
from pathlib import Path

import pytest

from evals.errors import EvalError
from evals.sampler import Draw, SamplingParams
from evals.shelves.lm_eval.adapter import DEFAULT_MAX_GEN_TOKS, run_lm_eval
from evals.shelves.lm_eval.loading import OWN_TASKS, task_manager
from tests.evals.scripted import Scripted, undrawn, write_rows
from tests.evals.shelves.lm_eval.parity import minerva_runs

lm_eval = pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")

PROBLEMS = [("1+1", 2), ("2+5", 7), ("9+9", 18)]
SHOTS = [(f"{n}+1", n + 1) for n in range(6)]


def rows(sums: list[tuple[str, int]]) -> list[dict[str, str]]:
    return [{"problem": f"What is {q}?", "answer": str(a), "solution": f"{q}={a}\n#### {a}"} for q, a in sums]


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> Path:
    folder: Path = write_rows(
        tmp_path / "data",
        {"gsm8k_test.jsonl": rows(PROBLEMS), "gsm8k_train.jsonl": rows(SHOTS), "aime24.jsonl": rows(PROBLEMS)},
    )
    monkeypatch.setenv("BENCH_DATA", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def own(tmp_path) -> Path:
    folder: Path = tmp_path / "tasks"
    folder.mkdir()
    return folder


def always(text: str) -> Scripted:
    return Scripted(lambda draw: text)


def refusal(names: list[str], include_path: Path | None = None, chat: bool = False) -> str:
    with pytest.raises(EvalError) as raised:
        run_lm_eval(names, Scripted(undrawn), include_path=include_path, apply_chat_template=chat)
    return str(raised.value)


def variant(folder: Path, of: str, **changed: object) -> str:
    """Writes a task file `variant.yaml` that changes one of ours."""
    lines = [f"include: {OWN_TASKS / of}.yaml", "task: variant"]
    (folder / "variant.yaml").write_text("\n".join([*lines, *(f"{k}: {json.dumps(v)}" for k, v in changed.items())]))
    return "variant"


def test_metrics_and_rows():
    texts = {"0": "1+1=2\n#### 2", "1": "#### 8", "2": "It is 18"}
    result = run_lm_eval(["gsm8k_local"], Scripted(lambda draw: texts[draw.example.rpartition("/")[2]]))
    scores = {metric.filter: metric for metric in result.metrics}
    assert {metric.name for metric in result.metrics} == {"exact_match"}
    assert scores["strict-match"].value == pytest.approx(1 / 3)
    assert scores["flexible-extract"].value == pytest.approx(2 / 3)
    # The standard error of a mean of n = 3 with ddof 1: sqrt(2/9 * 3/2 / 3).
    assert scores["strict-match"].stderr == pytest.approx((1 / 9) ** 0.5)
    strict = [row for row in result.rows if row["filter"] == "strict-match"]
    assert [(row["doc_id"], row["filtered"], row["metrics"]) for row in strict] == [
        (0, "2", {"exact_match": 1.0}),
        (1, "8", {"exact_match": 0.0}),
        (2, "[invalid]", {"exact_match": 0.0}),
    ]
    assert strict[0]["completions"] == [texts["0"]]
    assert (strict[0]["n_tokens"], strict[0]["truncated"]) == ([3], [False])
    prompt = strict[0]["prompt"]
    assert isinstance(prompt, str)
    assert prompt.endswith("\n\nQuestion: What is 1+1?\nAnswer:")
    assert prompt.count("Question: ") == 6
    assert len({row["doc_hash"] for row in result.rows}) == 3


def test_decoding_of_a_task_without_a_length_is_a_default_that_is_told(caplog):
    sampler = always("#### 2")
    with caplog.at_level(logging.WARNING, "evals.shelves.lm_eval.adapter"):
        result = run_lm_eval(["gsm8k_local"], sampler, limit=2)
    ((draws, decoding),) = sampler.calls
    assert decoding == SamplingParams(DEFAULT_MAX_GEN_TOKS, temperature=0.0, stop=("Question:", "</s>", "<|im_end|>"))
    assert [draw.example for draw in draws] == ["gsm8k_local/0", "gsm8k_local/1"]
    assert "gsm8k_local does not say how many tokens a completion may have: at most 256 are drawn" in caplog.text
    (task,) = result.tasks
    assert (task.max_gen_toks_assumed, task.decodings, task.n_docs, task.repeats) == (True, (decoding,), 2, 1)


def test_decoding_of_a_task_with_a_length(caplog):
    sampler = always("")
    with caplog.at_level(logging.WARNING, "evals.shelves.lm_eval.adapter"):
        (task,) = run_lm_eval(["aime24_local"], sampler).tasks
    assert sampler.calls[0][1].max_completion_tokens == 32768
    assert not task.max_gen_toks_assumed
    assert "evals.shelves.lm_eval.adapter" not in {record.name for record in caplog.records}


def test_a_length_that_is_asked_for_holds_for_every_task(caplog):
    sampler = always("")
    with caplog.at_level(logging.WARNING, "evals.shelves.lm_eval.adapter"):
        tasks = run_lm_eval(["aime24_local", "gsm8k_local"], sampler, limit=1, max_gen_toks=77).tasks
    assert {decoding.max_completion_tokens for _, decoding in sampler.calls} == {77}
    assert not any(task.max_gen_toks_assumed for task in tasks)
    assert "evals.shelves.lm_eval.adapter" not in {record.name for record in caplog.records}


def test_default_length_is_that_of_lm_eval():
    assert lm_eval.defaults.DEFAULT_MAX_GEN_TOKS == DEFAULT_MAX_GEN_TOKS


@pytest.mark.parametrize(
    ("settings", "decoding"),
    [
        ({"max_new_tokens": 5, "temperature": 0.7, "top_k": 20}, SamplingParams(5, 0.7, top_k=20)),
        ({"max_gen_toks": 5, "do_sample": False, "temperature": 0.7, "top_p": 0.5}, SamplingParams(5, 0.0)),
        ({"max_gen_toks": 5, "do_sample": True, "temperature": 1, "top_p": 0.5}, SamplingParams(5, 1.0, top_p=0.5)),
        ({"max_gen_toks": 5, "max_tokens": 9, "until": ["", "a"]}, SamplingParams(5, 0.0, stop=("a",))),
        ({"max_gen_toks": 5, "until": "abc"}, SamplingParams(5, 0.0, stop=("abc",))),
    ],
)
def test_generation_settings(own, settings, decoding):
    sampler = always("#### 2")
    run_lm_eval(
        [variant(own, "gsm8k_local", generation_kwargs={"until": [], **settings})], sampler, include_path=own, limit=1
    )
    assert sampler.calls[0][1] == decoding


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 4}, "asks for completions sampled with num_beams. This changes scores"),
        ({"do_sample": True}, "`do_sample: true` without a temperature above 0"),
    ],
)
def test_generation_settings_that_cannot_be_met(own, settings, message):
    name = variant(own, "gsm8k_local", generation_kwargs={"until": [], **settings})
    refused = refusal(["aime24_local", name], own)
    assert message in refused
    assert "lm-eval task variant" in refused


def test_a_stop_string_and_what_follows_is_cut():
    result = run_lm_eval(["gsm8k_local"], always("#### 2\n\nQuestion: What is 1+6?\nAnswer: 7\n#### 7"), limit=1)
    assert [row["completions"] for row in result.rows] == [["#### 2\n\n"]] * 2
    assert [metric.value for metric in result.metrics] == [1.0, 1.0]


def test_samples_of_a_document_are_counted():
    right = {"0": 8, "1": 2, "2": 0}

    def script(draw: Draw) -> str:
        doc = draw.example.rpartition("/")[2]
        return f"so \\boxed{{{PROBLEMS[int(doc)][1]}}}" if draw.sample < right[doc] else "so \\boxed{0}"

    sampler = Scripted(script)
    result = run_lm_eval(["gsm8k_local_avg8"], sampler)
    ((draws, decoding),) = sampler.calls
    assert [(draw.example, draw.sample) for draw in draws] == [
        (f"gsm8k_local_avg8/{doc}", sample) for doc in range(3) for sample in range(8)
    ]
    assert draws[0].prompt == ("What is 1+1?\nPlease reason step by step, and put your final answer within \\boxed{}.")
    assert decoding == SamplingParams(1024, 0.6, top_p=0.95)
    # pass@2 of 2 right among 8: 1 - 15/28; pass@4: 1 - 15/70.
    assert {metric.name: metric.value for metric in result.metrics} == pytest.approx(
        {"avg@8": 10 / 24, "pass@2": (1 + 13 / 28) / 3, "pass@4": (1 + 55 / 70) / 3, "pass@8": 2 / 3}
    )
    assert all(metric.stderr is not None for metric in result.metrics)
    assert len(result.rows[0]["completions"]) == len(result.rows[0]["n_tokens"]) == 8
    assert result.tasks[0].repeats == 8


def test_chat_prompts_are_messages():
    sampler = always("#### 2")
    result = run_lm_eval(["gsm8k_local"], sampler, limit=1, apply_chat_template=True)
    prompt = sampler.calls[0][0][0].prompt
    assert isinstance(prompt, list)
    assert [message["role"] for message in prompt] == ["user", "assistant"] * 5 + ["user"]
    assert prompt[-1] == {"role": "user", "content": "Question: What is 1+1?\nAnswer:"}
    assert result.rows[0]["prompt"] == prompt


def test_a_begun_answer_is_refused_in_a_chat(own):
    name = variant(own, "gsm8k_local", gen_prefix="Let us see:")
    assert "begins the answer itself (`gen_prefix`)" in refusal([name], own, chat=True)


def test_tasks_of_log_likelihoods_are_refused(own, monkeypatch):
    monkeypatch.delenv("BENCH_DATA")  # the refusal comes before the rows are looked for
    name = variant(own, "gsm8k_local", output_type="loglikelihood", generation_kwargs=None)
    assert "lm-eval task variant is scored by log-likelihoods (loglikelihood)" in refusal(["gsm8k_local", name], own)


def test_unknown_tasks_are_refused_with_the_nearest(monkeypatch):
    from lm_eval.tasks import TaskManager

    # The whole index takes ten seconds and more; without it ours are the only names.
    monkeypatch.setattr(TaskManager, "__init__", functools.partialmethod(_few, TaskManager.__init__))
    refused = refusal(["gsm8k_locl"])
    assert refused.startswith("unknown lm-eval task 'gsm8k_locl'; did you mean gsm8k_local or gsm8k_local_avg8?")


def _few(self, initialise, include_path=None, include_defaults=False):
    initialise(self, include_path=include_path, include_defaults=False)


def test_shipped_tasks_are_found_without_the_whole_index(monkeypatch):
    from lm_eval.tasks import TaskManager

    made = []
    original = TaskManager.__init__

    def watched(self, *args, **settings):
        made.append(settings["include_defaults"])
        original(self, *args, **settings)

    monkeypatch.setattr(TaskManager, "__init__", watched)
    manager = task_manager(["gsm8k", "aime24", "minerva_math500", "gsm8k_local"], None)
    assert made == [False]
    homes = [manager.task_index[name].yaml_path.parent.name for name in ("gsm8k", "aime24", "minerva_math500")]
    assert homes == ["gsm8k", "aime", "minerva_math"]


def test_tasks_that_cannot_be_loaded(data, own, monkeypatch):
    broken = variant(own, "gsm8k_local", filter_list=[{"name": "a", "filter": []}], dataset_kwargs={"files": {}})
    assert "lm-eval task variant cannot be loaded" in refusal([broken], own)
    (data / "gsm8k_train.jsonl").unlink()
    assert f"this task reads {data / 'gsm8k_train.jsonl'}, which is not there" in refusal(["gsm8k_local"])
    monkeypatch.delenv("BENCH_DATA")
    assert "BENCH_DATA is not set" in refusal(["gsm8k_local"])


def test_minerva_wants_an_environment_of_its_own(data):
    if minerva_runs():
        pytest.skip("antlr4-python3-runtime is the one that minerva accepts")
    write_rows(data, {"math500.jsonl": [{"problem": "1+1", "solution": "\\boxed{2}"}]})
    assert "Give it an environment of its own, `make .venv-lm-eval`" in refusal(["minerva_math500_local"])


def test_a_folder_of_tasks_must_be_there(tmp_path):
    assert "which is not a folder" in refusal(["gsm8k_local"], tmp_path / "absent")


def test_stdout_belongs_to_the_caller(capsys):
    run_lm_eval(["gsm8k_local", "aime24_local"], always("#### 2"))
    assert capsys.readouterr().out == ""
