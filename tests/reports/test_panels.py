from __future__ import annotations

import numpy as np
import pytest

from reports.figures.panels import Panels, keep_only_grid


@pytest.mark.parametrize("axis", ["x", "y"])
def test_where_labels_are_left_out_the_grid_stays(axis):
    layout = Panels(1, 2, height=1.0, column_gap=0.2, row_gap=0.2, left=0.5, top=0.3)
    figure, ((whole, without),) = layout.draw()
    for panel in (whole, without):
        panel.set(xlim=(0, 10), ylim=(2, 4))
    keep_only_grid([without], axis)
    own = without.xaxis if axis == "x" else without.yaxis
    assert not own.get_visible()
    (line,) = [
        artist for artist in without.get_children() if artist.get_zorder() == 0.5 and hasattr(artist, "get_xydata")
    ]
    figure.draw_without_rendering()
    corners = without.transAxes.inverted().transform(
        line.get_transform().transform(line.get_xydata()[~np.isnan(line.get_xydata()).any(axis=1)])
    )
    along, across = (corners[:, 0], corners[:, 1]) if axis == "x" else (corners[:, 1], corners[:, 0])
    np.testing.assert_allclose(across, np.tile([0.0, 1.0], len(across) // 2), atol=1e-9)
    low, high = (0, 10) if axis == "x" else (2, 4)
    other = whole.xaxis if axis == "x" else whole.yaxis
    shown = [tick for tick in other.get_majorticklocs() if low <= tick <= high]
    np.testing.assert_allclose(along[::2], (np.array(shown) - low) / (high - low), atol=1e-9)
    np.testing.assert_allclose(along[1::2], along[::2])
