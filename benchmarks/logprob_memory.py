"""Peak memory and time of log-probs and entropies, forward and backward: all logits at once against chunks of them.

    python benchmarks/logprob_memory.py --json
    python benchmarks/logprob_memory.py --tokens 2048 --vocabulary 50000

Each way runs in a process of its own. Its memory is the growth of the peak resident set over what it was with the
weights and the inputs in place. The hidden size is small by default, so that logits and not weights dominate.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from machine import machine_line
from outcome import arguments, bounds, finish

REQUIRED_RATIO = 6.0
TEMPERATURE = 0.7


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(way: str, tokens: int, vocabulary: int, hidden_size: int, chunk_tokens: int) -> dict[str, float]:
    """Run one way once in this process."""
    import torch

    from harness.training.token_scores import OutputHead, token_scores

    def plain() -> tuple[torch.Tensor, torch.Tensor]:
        logps = torch.log_softmax(torch.nn.functional.linear(hidden, weight).float() / TEMPERATURE, dim=-1)
        with torch.no_grad():
            entropy = -(logps.exp() * logps).sum(-1)
        return logps.gather(1, targets[:, None])[:, 0], entropy

    def chunked() -> tuple[torch.Tensor, torch.Tensor]:
        return token_scores(hidden, OutputHead(weight), targets, TEMPERATURE, chunk_tokens)

    torch.manual_seed(0)
    hidden = torch.randn(tokens, hidden_size, requires_grad=True)
    weight = (torch.randn(vocabulary, hidden_size) / hidden_size**0.5).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))
    # The gradients and the libraries' own memory are in place before.
    torch.autograd.backward((hidden[:1] @ weight[:1].T).sum())
    before_bytes, start_s = peak_bytes(), time.perf_counter()
    logps, entropy = {"plain": plain, "chunked": chunked}[way]()
    torch.autograd.backward(logps.sum())
    assert hidden.grad is not None and weight.grad is not None
    return {
        "seconds": time.perf_counter() - start_s,
        "gib": (peak_bytes() - before_bytes) / 2**30,
        "logp_mean": float(logps.detach().mean()),
        "entropy_mean": float(entropy.mean()),
        "gradient_norm": float(hidden.grad.norm() + weight.grad.norm()),
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--chunk-tokens", type=int, default=512)
    given = parser.parse_args()
    sizes = [given.tokens, given.vocabulary, given.hidden_size, given.chunk_tokens]
    results = {}
    for way in ("plain", "chunked"):
        command = [sys.executable, __file__, way, *map(str, sizes)]
        results[way] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    lines = [
        machine_line(int(results["plain"]["threads"])),
        f"{given.tokens} tokens x {given.vocabulary} vocabulary, hidden size {given.hidden_size}, float32; forward and "
        "backward",
    ]
    for way, result in results.items():
        what = f"{way} ({given.chunk_tokens} tokens)" if way == "chunked" else way
        lines.append(f"  {what:22} {result['gib']:6.2f} GiB {result['seconds']:6.1f} s")
    ratio = results["plain"]["gib"] / results["chunked"]["gib"]
    times = results["chunked"]["seconds"] / results["plain"]["seconds"]
    lines.append(f"chunked: {ratio:.1f} times less memory (required: {REQUIRED_RATIO:g}), x{times:.2f} the time")
    faults = [
        f"the two ways disagree: {name} is {results['plain'][name]} and {results['chunked'][name]}"
        for name in ("logp_mean", "entropy_mean", "gradient_norm")
        if abs(results["plain"][name] - results["chunked"][name]) > 1e-4 * abs(results["plain"][name])
    ]
    outcome = {
        "settings": vars(given),
        "memory_ratio": ratio,
        "time_ratio": times,
        "ways": results,
        "required": bounds(at_least={"memory_ratio": REQUIRED_RATIO}),
        "faults": faults,
    }
    finish("logprob_memory", outcome, lines, given)


if __name__ == "__main__":
    if sys.argv[1:2] in (["plain"], ["chunked"]):
        print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
    else:
        main()
