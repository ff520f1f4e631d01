"""The MLflow mirror of a sweep. Only the parent process writes it, from the records, which remain authoritative."""

from harness.tracking.client import MirrorError, server_command, tracking_uri
from harness.tracking.evaluation import log_evaluation, log_lm_eval, sync_evaluations
from harness.tracking.mirror import Mirror, MirrorThread

__all__ = [
    "Mirror",
    "MirrorError",
    "MirrorThread",
    "log_evaluation",
    "log_lm_eval",
    "server_command",
    "sync_evaluations",
    "tracking_uri",
]
