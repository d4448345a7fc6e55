"""The names that other packages import from `plots`. A name's module is loaded when the name is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.plots.figure import write_pages
    from assay.plots.param_plots import (
        BUILDERS,
        MOST_PARAMS,
        build_histories,
        build_importances,
        build_parallels,
        build_slices,
    )
    from assay.plots.plot_document import build_page
    from assay.plots.plotting import (
        OptionNames,
        Plot,
        PlotOptions,
        PlottedRuns,
        build_labels,
        build_plots,
        build_selection,
        choose_metrics,
        choose_time_unit,
        describe_metrics,
        find_start,
    )

HOMES = {
    "assay.plots.figure": "write_pages",
    "assay.plots.param_plots": "BUILDERS MOST_PARAMS build_histories build_importances build_parallels build_slices",
    "assay.plots.plot_document": "build_page",
    "assay.plots.plotting": (
        "OptionNames Plot PlotOptions PlottedRuns build_labels build_plots build_selection choose_metrics "
        "choose_time_unit describe_metrics find_start"
    ),
}
__getattr__ = build_getattr(__name__, HOMES)
