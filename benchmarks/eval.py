"""Wall-clock of an evaluation: lm-eval's GSM8K without examples on a small model, greedy, by our engines and by
lm-eval's own hf backend at its best batch size. Same weights, prompts, limits, filters and metric; models are loaded
already.

    BENCH_DATA=... python benchmarks/eval.py --json
"""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from outcome import arguments, bounds, finish
from pairs import Contestant, Entrant, Row, alternate, compare, note
from rollout import GGUF
from workload import model_source

HERE = Path(__file__).parent
REQUIRED = {"torch_ratio": 0.6}
ALIKE_FRAC = 0.9
"""The fraction of greedy completions on which two ways must agree; rounding decides the others."""


def main() -> None:
    parser = arguments(__doc__ or "")
    default = Path(os.environ.get("BENCH_MODELS") or ".models") / GGUF
    parser.add_argument("--model", default=str(default), help="a folder, a .gguf file, or a model.source")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--max-gen-toks", type=int, default=256, help="of a completion")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 32, 64], help="of the hf backend")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each way")
    given = parser.parse_args()
    source = model_source(given.model)
    if source == f"gguf:{given.model}" and not Path(given.model).is_file():
        parser.error(f"no model at {given.model}: `make models` fetches it, or give --model")
    if not os.environ.get("BENCH_DATA"):
        parser.error("BENCH_DATA must name the folder that has gsm8k_test.jsonl and gsm8k_train.jsonl")
    ways = {"torch engine": ("torch", 0)}
    if find_spec("vllm"):
        ways["vLLM"] = ("vllm", 0)
    ways |= {f"hf, batches of {size}": ("hf", size) for size in given.batch_sizes}

    with ExitStack() as running:
        entrants = []
        for name, (engine, batch_size) in ways.items():
            script = [str(HERE / "eval_contestant.py"), engine, source, given.device]
            rest = map(str, (given.problems, given.max_gen_toks, batch_size))
            command = [sys.executable, *script, *rest]
            contestant = running.enter_context(Contestant(command, given.threads, ours=engine != "hf"))
            entrants.append(Entrant(engine, name, contestant.turn))
            note(f"ready: {name}, {contestant.ready['seconds']:.0f} s a turn")
        rows = alternate(entrants, given.pairs)

    sides = {entrant.name: entrant.side for entrant in entrants}
    seconds = {name: [row["seconds"] for row in of_one] for name, of_one in rows.items()}
    outcome: Row = {
        "settings": vars(given) | {"model": Path(given.model).name},
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "work": {
            name: {key: of_one[-1][key] for key in ("completions", "tokens", "score")} for name, of_one in rows.items()
        },
        "required": bounds(at_most=REQUIRED if given.device == "cpu" else None),
        "faults": [],
    }
    lines = [f"  {value:.1f} s: {name}" for name, value in outcome["seconds"].items()]
    for engine in sorted(set(sides.values()) - {"hf"}):
        comparison = compare(sides, seconds, engine, "hf")
        outcome[f"{engine}_ratio"], outcome[f"{engine}_ratios"] = comparison.ratio, comparison.ratios
        texts, others = (rows[comparison.best[side]][-1]["texts"] for side in (engine, "hf"))
        alike = statistics.fmean(one == other for one, other in zip(texts, others, strict=True))
        outcome[f"{engine}_alike_frac"] = alike
        if alike < ALIKE_FRAC:
            outcome["faults"].append(f"only {alike:.0%} of {engine}'s completions are those of the hf backend")
        lines.append(f"{engine} takes {comparison.ratio:.2f} of the time of {comparison.best['hf']}; {alike:.0%} alike")
    finish("eval", outcome, lines, given, given.device)


if __name__ == "__main__":
    main()
