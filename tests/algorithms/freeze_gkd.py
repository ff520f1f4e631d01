"""Write TRL's `generalized_jsd_loss` on fixed logits to tests/golden/gkd.json, in an environment with TRL 1.16:
`python tests/algorithms/freeze_gkd.py`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import trl
from trl.experimental.gkd import GKDTrainer

GOLDEN = Path(__file__).parents[1] / "golden" / "gkd.json"
SETTINGS = ((0.0, 1.0), (0.1, 1.0), (0.5, 1.0), (0.5, 0.9), (0.9, 2.0), (1.0, 1.0))


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = ((2 * torch.randn(2, 4, 6, generator=generator)).double().round(decimals=2) for _ in range(2))
    labels = torch.tensor([[3, 1, 5, 0], [2, 4, -100, -100]])
    entries = []
    for beta, temperature in SETTINGS:
        logits = student.clone().requires_grad_()
        loss = GKDTrainer.generalized_jsd_loss(logits, teacher, labels, beta=beta, temperature=temperature)
        (gradient,) = torch.autograd.grad(loss, logits)
        entries.append({"beta": beta, "temperature": temperature, "loss": loss.item(), "gradient": gradient.tolist()})
    inputs = {"student_logits": student.tolist(), "teacher_logits": teacher.tolist(), "labels": labels.tolist()}
    document = {"trl": trl.__version__, "inputs": inputs, "entries": entries}
    GOLDEN.write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
