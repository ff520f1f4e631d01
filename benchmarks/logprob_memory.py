"""Peak memory and time of log-probs and entropies, forward and backward: all logits at once against chunks of them.

python benchmarks/logprob_memory.py [tokens] [vocabulary] [hidden size] [chunk tokens]

Each way runs in a process of its own. Its memory is the growth of the peak resident set over what it was with the
weights and the inputs in place. The hidden size is small by default, so that logits and not weights dominate.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from machine import machine

REQUIRED_RATIO = 6.0
TEMPERATURE = 0.7


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(way: str, tokens: int, vocabulary: int, hidden_size: int, chunk_tokens: int) -> dict[str, float]:
    """Run one way once in this process."""
    import torch

    from harness.training.output_head import OutputHead
    from harness.training.token_scores import token_scores

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


def main(tokens: int = 4096, vocabulary: int = 151_936, hidden_size: int = 64, chunk_tokens: int = 512) -> None:
    sizes = [tokens, vocabulary, hidden_size, chunk_tokens]
    results = {}
    for way in ("plain", "chunked"):
        command = [sys.executable, __file__, way, *map(str, sizes)]
        results[way] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    print(machine(int(results["plain"]["threads"])))
    print(f"{tokens} tokens x {vocabulary} vocabulary, hidden size {hidden_size}, float32; forward and backward")
    for way, result in results.items():
        what = f"{way} ({chunk_tokens} tokens)" if way == "chunked" else way
        print(f"  {what:22} {result['gib']:6.2f} GiB {result['seconds']:6.1f} s")
    ratio = results["plain"]["gib"] / results["chunked"]["gib"]
    times = results["chunked"]["seconds"] / results["plain"]["seconds"]
    print(f"chunked: {ratio:.1f} times less memory (required: {REQUIRED_RATIO:g}), x{times:.2f} the time")
    for name in ("logp_mean", "entropy_mean", "gradient_norm"):
        plain, chunked = (results[way][name] for way in ("plain", "chunked"))
        if abs(plain - chunked) > 1e-4 * abs(plain):
            sys.exit(f"the two ways disagree: {name} is {plain} and {chunked}")
    if ratio < REQUIRED_RATIO:
        sys.exit(f"below the required ratio of {REQUIRED_RATIO:g}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["plain"], ["chunked"]):
        print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
    else:
        main(*map(int, sys.argv[1:]))
