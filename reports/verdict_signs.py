"""Beside its colour each verdict has a sign, for readers and printers without colour."""

VERDICT_SIGNS = {
    "better": "▲",
    "worse": "▼",
    "equivalent": "≈",
    "identical": "=",
    "inconclusive": "?",
    "no_test": "∅",
}
