"""Seconds per GRPO step, ours against TRL's GRPOTrainer: same machine, weights, prompts, groups, limits and loss.

Two cases: completions that end by themselves, and completions that all run to the limit. Both sides are processes that
train on side by side and take turns; of each side the fastest setting counts, with one thread or two. Start-up and the
first steps are left out (see ablation.py for start-up).

    python benchmarks/grpo_step.py --json
    python benchmarks/grpo_step.py --explore            # what TRL's settings are worth on this machine
    python benchmarks/grpo_step.py --model Qwen2.5-0.5B-Instruct --task gsm8k --device cuda \\
        --max-completion-tokens 512 --prompts 64 --learning-rate 1e-6 --micro-batch-tokens 65536

On a GPU all settings of TRL are in its memory at once: name one with --trl where they do not fit. Where no model is at
hand, --untrained makes one:

    python benchmarks/grpo_step.py --untrained /tmp/half_billion --device cuda --case full --threads 4 \\
        --max-completion-tokens 256 --micro-batch-tokens 8192 --trl 'bf16 weights, 8 micro-batches'
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outcome import arguments, bounds, finish
from pairs import Comparison, Contestant, ContestantError, Entrant, Row, alternate, compare, note
from roofline_formulas import Device, Passes, Shape, measure_device, step_limit
from trl_settings import BEST_ON_CPU, CPU, CUDA
from workload import Workload, add_options, settings_of, shape_and_prompt_tokens, workload_of, write_prompts

HERE = Path(__file__).parent
REQUIRED = {"ratio_varying": 0.35, "ratio_full": 0.65}
LENGTHS_DIFFER_FRAC, REWARDS_DIFFER = 0.1, 0.1
"""More than sampling noise: the two sides then do not do the same work."""


@dataclass(frozen=True)
class Setting:
    """One contestant: TRL with `options`, or ours."""

    side: str
    label: str
    threads: int
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.side}, {self.label}, {self.threads} thread(s)"

    def command(self, workload: Workload, prompts: Path, warmup_steps: int, steps_a_turn: int) -> list[str]:
        if self.side == "ours":
            script = [str(HERE / "our_grpo.py"), workload.to_json()]
        else:
            script = [str(HERE / "trl_grpo.py"), workload.to_json(), str(prompts), json.dumps(self.options)]
        return [sys.executable, *script, str(warmup_steps), str(steps_a_turn)]


def settings(device: str, threads: Sequence[int], explore: bool, names: Sequence[str] | None = None) -> list[Setting]:
    """Who takes part: of TRL's settings those that are named, by default all on a GPU and the best on a CPU."""
    known = CUDA if device.startswith("cuda") else CPU
    usual = known if explore or known is CUDA else BEST_ON_CPU
    tried = {name: known[name] for name in names or usual}
    theirs = [Setting("trl", name, count, options) for name, options in tried.items() for count in threads]
    return theirs if explore else [*(Setting("ours", "torch engine", count, {}) for count in threads), *theirs]


def measure(
    workload: Workload,
    entrants: Sequence[Setting],
    rounds: int,
    warmup_steps: int,
    steps_a_turn: int,
    leave_out_failed: bool = False,
) -> dict[str, list[Row]]:
    """A row for each round, by setting; those that fail in their first steps may be left out."""
    # One step more than is measured: the run must not end in a contestant's last turn.
    workload = replace(workload, steps=warmup_steps + rounds * steps_a_turn + 1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        prompts = Path(folder) / "prompts.jsonl"
        write_prompts(workload, prompts)
        turns = []
        for setting in entrants:
            command = setting.command(workload, prompts, warmup_steps, steps_a_turn)
            try:
                contestant = running.enter_context(Contestant(command, setting.threads, ours=setting.side == "ours"))
            except ContestantError as error:
                if not leave_out_failed:
                    raise
                note(f"failed: {setting.name}\n{error}")
                continue
            turns.append(Entrant(setting.side, setting.name, contestant.turn))
            note(f"ready: {setting.name}")
        return alternate(turns, rounds)


def work(rows: Sequence[Row]) -> Row:
    """Means over the turns, and the reward at both ends."""
    keys = [key for key, value in rows[0].items() if isinstance(value, int | float) and key != "seconds"]
    means: Row = {key: statistics.fmean(row[key] for row in rows) for key in keys}
    means["mean_length"] = means["generated_tokens"] / means["completions"]
    means["reward_first"], means["reward_last"] = rows[0]["reward"], rows[-1]["reward"]
    if "timing" in rows[0]:
        phases = rows[0]["timing"]
        means["timing"] = {key: statistics.fmean(row["timing"][key] for row in rows) for key in phases}
    return means


def unequal(ours: Row, trl: Row) -> list[str]:
    """Where two accounts of `work` differ by more than chance."""
    found = []
    if round(ours["completions"]) != round(trl["completions"]):
        found.append(f"completions a step: {ours['completions']:.0f} and {trl['completions']:.0f}")
    if abs(ours["mean_length"] - trl["mean_length"]) > LENGTHS_DIFFER_FRAC * trl["mean_length"]:
        found.append(f"mean length: {ours['mean_length']:.1f} and {trl['mean_length']:.1f} tokens")
    for key in ("reward_first", "reward_last", "reward"):
        if abs(ours[key] - trl[key]) > REWARDS_DIFFER:
            found.append(f"{key}: {ours[key]:.2f} and {trl[key]:.2f}")
    return found


def limits(shape: Shape, device: Device, prompt_tokens: float, workload: Workload, ours: Row, trl: Row) -> Row:
    """Seconds: the algorithmic limit of the step, and the limits of what either side did."""
    lengths, samples = [round(length) for length in trl["lengths"]], workload.samples
    trained_frac = ours["tokens_trained"] / ours["tokens_in_loss"]
    padded = {"ours": ours.get("timing", {}).get("padding_frac", 0.0), "trl": 1 - trl["mean_length"] / max(lengths)}
    least = step_limit(
        shape, device, prompt_tokens, lengths, samples, Passes(), trained_frac, True, separate_engine=False
    )
    # Rows without an advantage are scored for the metrics, which takes one pass without gradient.
    scored = Passes(scored=(1 - trained_frac) / trained_frac)
    ours_done = step_limit(
        shape,
        device,
        prompt_tokens,
        lengths,
        samples,
        scored,
        trained_frac,
        padding_frac=padded["ours"],
        separate_engine=False,
    )
    trl_done = step_limit(
        shape, device, prompt_tokens, lengths, samples, padding_frac=padded["trl"], separate_engine=False
    )
    return {"algorithmic_s": least.total_s, "ours_done_s": ours_done.total_s, "trl_done_s": trl_done.total_s}


def account(entrants: Sequence[Setting], rows: Mapping[str, list[Row]], comparison: Comparison) -> Row:
    """One case, for JSON, without its limit."""
    case: Row = {"ratio": comparison.ratio, "ratios": comparison.ratios}
    for side, name in comparison.best.items():
        best = next(setting for setting in entrants if setting.name == name)
        done = work(rows[name])
        case[side] = {
            "setting": best.label,
            "options": dict(best.options),
            "threads": best.threads,
            "seconds_per_step": comparison.median_s[name],
            "seconds_by_turn": [row["seconds"] for row in rows[name]],
            "all_settings_s": {s.name: comparison.median_s[s.name] for s in entrants if s.side == side},
            "work": done,
        }
    case["unequal"] = unequal(case["ours"]["work"], case["trl"]["work"])
    return case


def text(name: str, case: Row) -> list[str]:
    """For people."""
    lines = [f"{name}: ours takes {case['ratio']:.2f} of TRL's time (rounds: {_range(case['ratios'])})"]
    for side in ("ours", "trl"):
        one, done = case[side], case[side]["work"]
        lines.append(
            f"  {side:4} {one['seconds_per_step']:.3f} s a step ({one['setting']}, {one['threads']} thread(s)); "
            f"{done['completions']:.0f} completions, {done['generated_tokens']:.0f} tokens, mean length "
            f"{done['mean_length']:.1f}, reward {done['reward_first']:.2f} to {done['reward_last']:.2f}; "
            f"{case['limit'][f'{side}_of_algorithmic']:.1%} of the algorithmic limit, "
            f"{case['limit'][f'{side}_of_done']:.1%} of that of the work done"
        )
    timing = case["ours"]["work"]["timing"]
    phases = {
        key: value for key, value in timing.items() if key.endswith("_s") and key not in ("total_s", "tokens_per_s")
    }
    lines.append("  ours by phase: " + ", ".join(f"{key} {value:.3f}" for key, value in phases.items()))
    return lines + [f"  NOT THE SAME WORK: {difference}" for difference in case["unequal"]]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def with_limit(case: Row, limit: Row) -> None:
    """Add the limit of a case and what share of it each side reached."""
    shares = {
        f"{side}_of_{kind}": limit["algorithmic_s" if kind == "algorithmic" else f"{side}_done_s"]
        / case[side]["seconds_per_step"]
        for side in ("ours", "trl")
        for kind in ("algorithmic", "done")
    }
    case["limit"] = limit | shares


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    add_options(parser)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=10, help="turns of each contestant")
    parser.add_argument("--steps", type=int, default=5, help="a turn")
    parser.add_argument("--warmup", type=int, default=5, help="steps before the first turn")
    parser.add_argument("--case", choices=["varying", "full"], action="append", help="only this one")
    parser.add_argument("--trl", nargs="+", choices=list(CPU | CUDA), help="only these settings of TRL")
    parser.add_argument("--explore", action="store_true", help="only TRL, with all settings that were tried")
    given = parser.parse_args(words)
    given.case = given.case or ["varying", "full"]
    unknown = set(given.trl or ()) - set(CUDA if given.device.startswith("cuda") else CPU)
    if unknown:
        parser.error(f"--trl {', '.join(sorted(unknown))}: not on {given.device}")
    if given.pairs < 1 or given.steps < 1 or given.warmup < 1:
        parser.error("--pairs, --steps and --warmup are at least 1")
    return given


def main() -> None:
    given = parse()
    workload = workload_of(given)
    entrants = settings(given.device, given.threads, given.explore, given.trl)
    if given.explore:
        explore(workload, entrants, given)
    device = measure_device(given.device, max(given.threads))
    shape, prompt_tokens = shape_and_prompt_tokens(workload)
    outcome: Row = {
        "settings": settings_of(given),
        "device": {"bandwidth": device.bandwidth, "flops": device.flops},
    }
    lines: list[str] = []
    for name in given.case:
        note(f"case: {name}")
        run = replace(workload, full_length=name == "full")
        rows = measure(run, entrants, given.pairs, given.warmup, given.steps)
        seconds = {setting: [row["seconds"] for row in of_one] for setting, of_one in rows.items()}
        comparison = compare({s.name: s.side for s in entrants}, seconds, "ours", "trl")
        case = account(entrants, rows, comparison)
        last_trl = case["trl"]["work"] | {"lengths": rows[comparison.best["trl"]][-1]["lengths"]}
        with_limit(case, limits(shape, device, prompt_tokens, run, case["ours"]["work"], last_trl))
        outcome |= {f"ratio_{name}": case["ratio"], f"fraction_of_limit_{name}": case["limit"]["ours_of_algorithmic"]}
        outcome[name] = case
        lines += text(name, case)
    on_cpu = given.device == "cpu" and workload.model == "builtin:tiny"
    outcome["required"] = bounds(at_most=REQUIRED if on_cpu else None)
    outcome["faults"] = [f"{name}: {fault}" for name in given.case for fault in outcome[name]["unequal"]]
    finish("grpo_step" if on_cpu else "grpo_step_model", outcome, lines, given, given.device)


def explore(workload: Workload, entrants: Sequence[Setting], given: argparse.Namespace) -> None:
    """All settings of TRL against each other, in the first case that is asked for."""
    run = replace(workload, full_length=given.case[0] == "full")
    rows = measure(run, entrants, given.pairs, given.warmup, given.steps, leave_out_failed=True)
    medians = {name: statistics.median(row["seconds"] for row in of_one) for name, of_one in rows.items()}
    ordered = dict(sorted(medians.items(), key=lambda item: item[1]))
    cpu_s = {name: statistics.median(row["cpu_seconds"] for row in rows[name]) for name in ordered}
    outcome = {
        "settings": settings_of(given),
        "case": given.case[0],
        "seconds_per_step": ordered,
        "cpu_seconds_per_step": cpu_s,
        "least_seconds_per_step": {name: min(row["seconds"] for row in rows[name]) for name in ordered},
        "failed": [setting.name for setting in entrants if setting.name not in rows],
    }
    lines = [f"  {seconds:.3f} s a step, {cpu_s[name]:.3f} of the CPU: {name}" for name, seconds in ordered.items()]
    finish("trl_settings", outcome, lines, given, given.device)


if __name__ == "__main__":
    main()
