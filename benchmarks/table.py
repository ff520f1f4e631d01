"""Writes the tables in benchmarks/README.md anew from benchmarks/results/*.json: `python benchmarks/table.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README, RESULTS = HERE / "README.md", HERE / "results"
START, END = "<!-- results: written by table.py -->\n", "<!-- end of results -->\n"
Outcome = Mapping[str, Any]


def _grpo_step(outcome: Outcome) -> Iterator[list[str]]:
    model = "" if outcome["benchmark"] == "grpo_step" else f" of {outcome['settings']['model']}"
    for case in ("varying", "full"):
        if case in outcome:
            one = outcome[case]
            ours, trl = one["ours"], one["trl"]
            yield [
                f"GRPO step{model}, {'lengths vary' if case == 'varying' else 'full length'}",
                f"{ours['seconds_per_step']:.3f} s ({ours['threads']} thread(s))",
                f"TRL {trl['seconds_per_step']:.3f} s ({trl['setting']}, {trl['threads']} thread(s))",
                f"{outcome[f'ratio_{case}']:.2f} of its time",
                _required(outcome, f"ratio_{case}"),
                f"{one['limit']['ours_of_algorithmic']:.1%}",
            ]


def _ablation(outcome: Outcome) -> Iterator[list[str]]:
    fastest, seconds = outcome["fastest"], outcome["seconds"]
    yield [
        "2 arms x 3 seeds x 30 steps, start-up included",
        f"{seconds[fastest['ours']]:.0f} s",
        f"TRL {seconds[fastest['trl']]:.0f} s ({fastest['trl']})",
        f"{outcome['ratio']:.2f} of its time",
        _required(outcome, "ratio"),
        "",
    ]


def _rollout(outcome: Outcome) -> Iterator[list[str]]:
    speed = outcome["tokens_per_s"]
    generate = max((name for name in speed if name.startswith("generate")), key=speed.__getitem__)
    for engine, name in (("torch", "torch engine"), ("vllm", "vLLM")):
        if name in speed:
            yield [
                f"{name}, SmolLM2-135M, 64 x {outcome['settings']['new_tokens']} tokens",
                f"{speed[name]:.0f} tokens/s",
                f"{generate} {speed[generate]:.0f} tokens/s",
                f"{outcome[f'{engine}_over_generate']:.2f} times as fast",
                _required(outcome, f"{engine}_over_generate"),
                f"{outcome['fraction_of_limit'][name]:.1%}",
            ]


def _memory(outcome: Outcome) -> Iterator[list[str]]:
    for name, cell in outcome["cells"].items():
        yield [
            f"memory of a cell: {name}",
            f"estimated {cell['estimated_gb']:.2f} GB",
            f"measured {cell['measured_gb']:.2f} GB",
            f"{cell['ratio']:.2f} of what it takes",
            f"within a factor of {outcome['required']['at_most']['farthest_factor']:g}",
            "",
        ]


def _logprob_memory(outcome: Outcome) -> Iterator[list[str]]:
    ways, settings = outcome["ways"], outcome["settings"]
    yield [
        f"log-probs of {settings['tokens']} tokens x {settings['vocabulary']} vocabulary, chunked",
        f"{ways['chunked']['gib']:.2f} GiB",
        f"all at once {ways['plain']['gib']:.2f} GiB",
        f"{outcome['memory_ratio']:.1f} times less",
        _required(outcome, "memory_ratio"),
        "",
    ]


def _draw(outcome: Outcome) -> Iterator[list[str]]:
    for rows, one in outcome["rows"].items():
        yield [
            f"drawing a token for {rows} rows, {outcome['settings']['vocabulary']} vocabulary",
            f"one kernel {one['kernel_ms']:.2f} ms",
            f"torch's operations {one['operations_ms']:.2f} ms",
            f"{one['ratio']:.2f} of their time",
            _required(outcome, "ratio_most"),
            "",
        ]


def _eval(outcome: Outcome) -> Iterator[list[str]]:
    seconds, settings = outcome["seconds"], outcome["settings"]
    hf = min((name for name in seconds if name.startswith("hf")), key=seconds.__getitem__)
    for engine, name in (("torch", "torch engine"), ("vllm", "vLLM")):
        if name in seconds:
            yield [
                f"{name}, GSM8K by lm-eval's task, {settings['problems']} problems, SmolLM2-135M",
                f"{seconds[name]:.0f} s",
                f"lm-eval's {hf} {seconds[hf]:.0f} s",
                f"{outcome[f'{engine}_ratio']:.2f} of its time",
                _required(outcome, f"{engine}_ratio"),
                "",
            ]


def _grading(outcome: Outcome) -> Iterator[list[str]]:
    for grader in ("numeric", "math"):
        yield [
            f"verdicts of the grader {grader}, {outcome['completions']} word problems",
            f"{outcome[f'{grader}_per_s']:,.0f} a second",
            "",
            "",
            _required(outcome, f"{grader}_per_s"),
            "",
        ]


def _samples(outcome: Outcome) -> Iterator[list[str]]:
    what = f"page of {outcome['samples']:,} samples"
    yield [f"{what}, drawn in a browser", f"{outcome['load_s']:.2f} s", "", "", _required(outcome, "load_s"), ""]
    yield [f"{what}, written", f"{outcome['write_s']:.1f} s", "", "", "", ""]


_ROWS: dict[str, Callable[[Outcome], Iterator[list[str]]]] = {
    "grpo_step": _grpo_step,
    "grpo_step_model": _grpo_step,
    "ablation": _ablation,
    "rollout": _rollout,
    "draw": _draw,
    "logprob_memory": _logprob_memory,
    "memory": _memory,
    "eval": _eval,
    "grading": _grading,
    "samples": _samples,
}


def _growth(outcome: Outcome) -> Iterator[list[str]]:
    """Each verb at each number of cells."""
    database = outcome["benchmark"].removeprefix("growth").removeprefix("_")
    for measured in (key.removesuffix("_cpu_s") for key in outcome if key.endswith("_cpu_s")):
        verb, _, cells = measured.partition("_")
        at_most = outcome["required"]["at_most"]
        limits = [f"{at_most[key]:g} {unit}" for unit in ("s", "MB") if (key := _KEY[unit].format(measured)) in at_most]
        yield [
            f"{verb}, {database}" if database else verb,
            f"{int(cells):,} x {outcome['settings']['steps']}",
            _place(outcome["machine"]),
            f"{outcome[f'{measured}_s']:.1f}",
            f"{outcome[f'{measured}_cpu_s']:.1f}",
            f"{outcome[f'{measured}_peak_mb']:.0f}",
            f"at most {' and '.join(limits)}" if limits else "",
        ]


_KEY = {"s": "{}_s", "MB": "{}_peak_mb"}


def _required(outcome: Outcome, key: str) -> str:
    required = outcome["required"]
    if key in required["at_most"]:
        return f"at most {required['at_most'][key]:g}"
    return f"at least {required['at_least'][key]:g}" if key in required["at_least"] else ""


def _markdown(rows: list[list[str]]) -> str:
    heading, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (heading, ["---"] * len(heading), *body))


def tables(outcomes: Mapping[str, Outcome]) -> str:
    """Name of the file of results -> its outcome; Markdown."""
    rows = [["what", "on", "ours", "beside", "ratio", "required", "of the physical limit"]]
    for name, make in _ROWS.items():
        for outcome in outcomes.values():
            if outcome["benchmark"] == name:
                rows += [[what, _place(outcome["machine"]), *more] for what, *more in make(outcome)]
    parts = [_markdown(rows)]
    for outcome in outcomes.values():
        if outcome["benchmark"] != "trl_settings":
            continue
        seconds: Mapping[str, float] = outcome["seconds_per_step"]
        tried = [[name.removeprefix("trl, "), f"{value:.3f}"] for name, value in seconds.items()]
        parts.append(_markdown([["TRL's settings", "seconds a step"], *tried]))
    growth = [row for one in outcomes.values() if one["benchmark"].startswith("growth") for row in _growth(one)]
    if growth:
        heading = ["verb", "cells x steps", "on", "seconds", "CPU seconds", "peak MB", "required"]
        parts.append(_markdown([heading, *growth]))
    machines = {_machine(outcome["machine"]): None for outcome in outcomes.values()}
    return "\n".join([*parts, *(f"{line}\n" for line in machines)])


def _machine(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {facts[name]}" for name in ("torch", "transformers", "trl", "vllm") if name in facts)
    cores = "" if "gpu" in facts else f", {facts['cores']} cores"
    return f"Measured on: {_place(facts)}{cores}, Python {facts['python']}, {versions}."


def _place(facts: Mapping[str, Any]) -> str:
    return str(facts.get("gpu") or facts["processor"])


def outcomes_in(folder: Path) -> dict[str, Outcome]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def with_tables(text: str, folder: Path = RESULTS) -> str:
    """The README with what is between the marks written anew."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{tables(outcomes_in(folder))}{END}{after}"


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
