"""Figures of runs, traces and plans in a common style.

Functions that draw need matplotlib and seaborn (extra ``plot``).
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.figures.capacity import draw_plan as draw_plan
    from fairbench.figures.compared.latex import latex_table as latex_table
    from fairbench.figures.compared.plot import write_pictures as write_pictures
    from fairbench.figures.profile_fit import Points as Points
    from fairbench.figures.profile_fit import draw_profile as draw_profile
    from fairbench.figures.style import FORMATS as FORMATS
    from fairbench.figures.style import check_plot as check_plot
    from fairbench.figures.trace import draw_trace as draw_trace

__getattr__ = lazy_names(
    __name__,
    {
        "capacity": "draw_plan",
        "compared.latex": "latex_table",
        "compared.plot": "write_pictures",
        "profile_fit": "Points draw_profile",
        "style": "FORMATS check_plot",
        "trace": "draw_trace",
    },
)
