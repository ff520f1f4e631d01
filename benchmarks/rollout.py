"""Tokens per second of each engine and of HF's `generate`: 8 prompts of about 100 tokens x 8 samples x 64 new tokens.

Each is a process of its own; they take turns. vLLM takes part where it is installed. `generate` counts with the fastest
of its settings.

    BENCH_MODELS=.models python benchmarks/rollout.py --json
    python benchmarks/rollout.py --model SmolLM2-135M-Instruct --pairs 5 --new-tokens 64
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outcome import arguments, bounds, finish
from pairs import Contestant, Entrant, Row, alternate, compare, note
from rollout_contestant import OPENINGS
from roofline_formulas import Device, Shape, decode_s, measure_device, prefill_s
from workload import model_source

HERE = Path(__file__).parent
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
REQUIRED = {"torch_over_generate": 1.5}
GENERATE: dict[str, dict[str, Any]] = {
    "dynamic cache": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "dynamic cache, eager attention": {"attn_implementation": "eager"},
}
"""Settings of `generate`; without `disable_compile` a static cache compiles anew for minutes on a CPU."""


def main() -> None:
    parser = arguments(__doc__ or "")
    default = Path(os.environ.get("BENCH_MODELS") or ".models") / GGUF
    parser.add_argument("--model", default=str(default), help="a folder, a .gguf file, or a model.source")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8, help=f"of each of the {len(OPENINGS)} prompts")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5, help="turns of each way")
    given = parser.parse_args()
    source = model_source(given.model)
    if source == f"gguf:{given.model}" and not Path(given.model).is_file():
        parser.error(f"no model at {given.model}: `make models` fetches it, or give --model")
    ways: dict[str, tuple[str, dict[str, Any]]] = {"torch engine": ("torch", {})}
    if find_spec("vllm"):
        ways["vLLM"] = ("vllm", {})
    ways |= {f"generate, {name}": ("generate", options) for name, options in GENERATE.items()}

    device = measure_device(given.device, given.threads)
    with ExitStack() as running:
        entrants = []
        for name, (engine, options) in ways.items():
            script = [str(HERE / "rollout_contestant.py"), engine, source, given.device]
            rest = [str(given.new_tokens), str(given.samples), json.dumps(options)]
            contestant = running.enter_context(
                Contestant([sys.executable, *script, *rest], given.threads, ours=engine != "generate")
            )
            entrants.append(Entrant(engine, name, contestant.turn))
            note(f"ready: {name}, {contestant.ready['turn_s']:.0f} s a turn")
        rows = alternate(entrants, given.pairs)

    sides = {entrant.name: entrant.side for entrant in entrants}
    seconds = {name: [row["seconds"] for row in of_one] for name, of_one in rows.items()}
    speed = {name: 1 / statistics.median(times) for name, times in seconds.items()}
    outcome: Row = {
        "settings": vars(given) | {"model": Path(given.model).name, "generate": GENERATE},
        "tokens_per_s": speed,
        "tokens_by_turn": {name: [row["tokens"] for row in of_one] for name, of_one in rows.items()},
        "required": bounds(at_least=REQUIRED if given.device == "cpu" else None),
    }
    lines = [f"  {value:7.0f} tokens/s: {name}" for name, value in speed.items()]
    limit = _limit_tokens_per_s(rows["torch engine"][0], given.samples, given.new_tokens, device)
    outcome["limit_tokens_per_s"] = limit
    outcome["fraction_of_limit"] = {name: value / limit for name, value in speed.items()}
    for engine in sorted(set(sides.values()) - {"generate"}):
        comparison = compare(sides, seconds, engine, "generate")
        ratios = [1 / ratio for ratio in comparison.ratios]
        outcome[f"{engine}_over_generate"], outcome[f"{engine}_ratios"] = statistics.median(ratios), ratios
        lines.append(
            f"{engine}: {statistics.median(ratios):.2f} times {comparison.best['generate']}; "
            f"{outcome['fraction_of_limit'][comparison.best[engine]]:.1%} of the limit of {limit:.0f} tokens/s"
        )
    finish("rollout", outcome, lines, given, given.device)


def _limit_tokens_per_s(facts: Row, samples: int, new_tokens: int, device: Device) -> float:
    """The most tokens per second, with one prefill per prompt and all completions decoded in one batch."""
    shape, tokens = Shape(**facts["shape"]), facts["prompt_tokens"]
    count = len(OPENINGS) * samples
    total_s = prefill_s(shape, device, len(OPENINGS), tokens) + decode_s(shape, device, tokens, [new_tokens] * count)
    return count * new_tokens / total_s


if __name__ == "__main__":
    main()
