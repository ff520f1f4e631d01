"""Milliseconds to draw one token for each of many rows on a GPU: by the kernel, and by torch's operations one by one.

    python benchmarks/draw.py --json
    python benchmarks/draw.py --rows 64 256 1024 --vocabulary 151936

Probabilities are given; both ways make the noise and find the token that wins. They must draw the same tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from outcome import arguments, bounds, finish
from pairs import Row
from torch import Tensor

from harness.engines.torch import decoding
from harness.engines.torch.decoding import exponential_noise

ROUNDS, CALLS = 7, 10
ELEMENTS_AT_ONCE = 2**24
"""For the noise by operations; the fastest of several sizes on an H100."""


def milliseconds(call: Callable[[], object]) -> float:
    """The time of one call, by events on the device."""
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(CALLS):
        call()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / CALLS


def measure(rows: int, vocabulary: int) -> Row:
    """Median milliseconds of each way, their ratio, and whether they draw the same tokens."""
    from harness.engines.torch.cuda_noise import first_arrivals

    keys = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
    position = torch.tensor([7], device="cuda")
    probabilities = torch.randn(rows, vocabulary, device="cuda").softmax(-1)
    ways: dict[str, Callable[[], Tensor]] = {
        "kernel": lambda: first_arrivals(probabilities, keys, position),
        "operations": lambda: (exponential_noise(keys, position, vocabulary) / probabilities).argmin(-1),
    }
    alike = torch.equal(*(call() for call in ways.values()))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            times[name].append(milliseconds(call))
    ratio = statistics.median(one / other for one, other in zip(times["kernel"], times["operations"], strict=True))
    return {f"{name}_ms": statistics.median(each) for name, each in times.items()} | {"ratio": ratio, "alike": alike}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here, and the kernel needs one")
    decoding.CACHED_ELEMENTS = ELEMENTS_AT_ONCE
    by_rows = {rows: measure(rows, given.vocabulary) for rows in given.rows}
    outcome: Row = {
        "settings": vars(given),
        "rows": {str(rows): one for rows, one in by_rows.items()},
        "ratio_most": max(one["ratio"] for one in by_rows.values()),
        "required": bounds(at_most={"ratio_most": 0.5}),
        "faults": [
            f"with {rows} rows the two ways draw other tokens" for rows, one in by_rows.items() if not one["alike"]
        ],
    }
    lines = [
        f"{rows:5} rows: kernel {one['kernel_ms']:.3f} ms, operations {one['operations_ms']:.3f} ms"
        for rows, one in by_rows.items()
    ]
    finish("draw", outcome, lines, given, "cuda")


if __name__ == "__main__":
    main()
