"""The physical limit of a GRPO step beside the time that ours takes; the formulas are in roofline_formulas.py.

python benchmarks/roofline.py --json                        # the tiny profile's step, measured on this machine
python benchmarks/roofline.py --model Qwen2.5-0.5B --steps 0 --max-completion-tokens 1024 --completion-tokens 295
"""

from __future__ import annotations

from statistics import median

from grpo_step import Setting, measure, work
from outcome import arguments, bounds, finish
from pairs import Row
from roofline_formulas import Limit, Passes, lognormal_lengths, measure_device, step_limit
from workload import add_options, settings_of, shape_and_prompt_tokens, workload_of

SPREAD = 0.47
"""The sd of the logarithm of completion lengths: that of the table in tests/benchmarks."""


def phases(limit: Limit) -> Row:
    return vars(limit) | {"total_s": limit.total_s}


def main() -> None:
    parser = arguments(__doc__ or "")
    add_options(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="measured, after as many of warm-up; 0 = the limit alone")
    parser.add_argument("--completion-tokens", type=float, help="mean of a completion; by default as measured")
    given = parser.parse_args()
    if given.steps == 0 and given.completion_tokens is None:
        parser.error("--steps 0 measures nothing, so it needs --completion-tokens")
    workload = workload_of(given)
    device = measure_device(given.device, given.threads)
    shape, prompt_tokens = shape_and_prompt_tokens(workload)
    outcome: Row = {
        "settings": settings_of(given),
        "device": vars(device),
        "shape": vars(shape),
        "required": bounds(),
    }
    lines = [f"{device.bandwidth / 1e9:.1f} GB/s read and written, {device.flops / 1e9:.0f} GFLOP/s"]

    done: Row = {}
    if given.steps:
        ours = Setting("ours", "torch engine", given.threads, {})
        rows = measure(workload, [ours], 3, given.steps, given.steps)[ours.name]
        done = work(rows) | {"seconds_per_step": median(row["seconds"] for row in rows)}
    trained_frac = done["tokens_trained"] / done["tokens_in_loss"] if done else 1.0
    mean_length = given.completion_tokens or done["mean_length"]
    lengths = lognormal_lengths(workload.completions, mean_length, workload.max_completion_tokens, SPREAD)
    limits = {
        "algorithmic": step_limit(
            shape,
            device,
            prompt_tokens,
            lengths,
            workload.samples,
            trained_frac=trained_frac,
            prompts_shared=True,
            separate_engine=False,
        ),
        "done": step_limit(
            shape,
            device,
            prompt_tokens,
            lengths,
            workload.samples,
            Passes(scored=(1 - trained_frac) / trained_frac),
            trained_frac,
            padding_frac=done.get("timing", {}).get("padding_frac", 0.0),
            separate_engine=False,
        ),
    }
    outcome |= {"measured": done, "limits": {kind: phases(limit) for kind, limit in limits.items()}}
    for kind, limit in limits.items():
        parts = ", ".join(f"{name} {seconds:.2g}" for name, seconds in vars(limit).items())
        line = f"{kind} limit {limit.total_s:.3g} s ({parts})"
        if done:
            outcome[f"fraction_of_{kind}"] = limit.total_s / done["seconds_per_step"]
            line += f": {outcome[f'fraction_of_{kind}']:.1%} of it is reached"
        lines.append(line)
    if done:
        lines.append(f"measured {done['seconds_per_step']:.3f} s a step, {done['generated_tokens']:.0f} tokens")
    finish("roofline", outcome, lines, given, given.device)


if __name__ == "__main__":
    main()
