"""The terms of a page that need an explanation, with their explanations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.words import said

if TYPE_CHECKING:
    from markupsafe import Markup

GLOSSARY = {
    "interval": said("reports.differences_data_do_not"),
    "Holm": said("reports.p_value_corrected_for"),
    "equal tokens": said("reports.both_sides_every_pair"),
    "detectable effect": said("reports.true_difference_this_number"),
    "pair": said("reports.two_cells_one_seed"),
    "margin": said("reports.difference_counts_as_none"),
    "undecided": said("reports.interval_holds_0_reaches"),
    "inconclusive": said("reports.interval_holds_0_reaches"),
    "IQM": said("reports.interquartile_mean_mean_middle"),
    "variance ratio": said("reports.variance_paired_difference_over"),
    "sign flip": said("reports.p_value_permutation_test"),
    "ρ": said("reports.correlation_two_arms_scores"),
    "ECE": said("reports.expected_calibration_error_how"),
    "length slope": said("reports.how_many_tokens_longer"),
    "right answer, wrong step": said("reports.share_right_answers_wrong"),
    "clipped steps": said("reports.share_optimiser_steps_whose"),
    "gradient norm": said("reports.length_gradient_before_clipped"),
    "entropy": said("reports.how_undecided_policy_about"),
    "over budget": said("reports.how_many_more_tokens"),
    "occupancy": said("reports.share_places_rollouts_batch"),
    "padding": said("reports.share_training_batch_holds"),
    "tokens per pass": said("reports.how_many_tokens_went"),
    "log-probs": said("reports.time_scoring_drawn_tokens"),
    "sync": said("reports.time_copying_new_weights"),
    "prefill": said("reports.time_reading_prompts_before"),
    "decode": said("reports.time_drawing_tokens_one"),
    "KL": said("reports.kullback_leibler_divergence_how"),
    "forecast error": said("reports.how_far_law_first"),
    "P(improvement)": said("reports.probability_run_arm_beats_glossary"),
    "pass@1": said("reports.mean_share_right_samples"),
    "flagged": said("reports.finished_but_something_may"),
    "look": said("reports.each_time_verdicts_this"),
    "seed x problem": said("reports.seeds_affect_problems"),
    "cell": said("reports.one_arm_trained_with_one_seed"),
}
"""Keyed by the word as sentences and headings use it."""

HOW_TO_READ = (
    said("reports.each_arm_has_one"),
    said("reports.thin_lines_seeds_thick"),
    said("reports.bands_bars_t_intervals"),
    said("reports.dotted_grey_line_or"),
    said("reports.mean_band_seeds_interpolated"),
    said("reports.n_number_seeds_arm"),
)
"""Notes that apply to all figures, so that no caption has to repeat them."""

# The regular expression takes the first alternative that matches, so a longer word must precede any shorter word that
# it contains.
_WORDS = sorted(GLOSSARY, key=len, reverse=True)
# The last lookahead skips text inside an HTML tag, such as an attribute.
_FIND = re.compile(r"(?<![\w@])(" + "|".join(re.escape(word) for word in _WORDS) + r")(?P<many>s?)(?![\w@])(?![^<]*>)")


def with_terms(html: Markup) -> Markup:
    """Return the HTML with the first occurrence of each glossary word wrapped in its explanation."""
    from markupsafe import Markup, escape

    seen: set[str] = set()

    def explained(found: re.Match[str]) -> str:
        word = found[1]
        if word in seen:
            return found[0]
        seen.add(word)
        return f'<abbr title="{escape(GLOSSARY[word])}">{found[0]}</abbr>'

    return Markup(_FIND.sub(explained, str(html)))
