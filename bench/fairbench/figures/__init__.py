"""Figures of runs, traces and plans in a common style.

Functions that draw need matplotlib and seaborn (extra ``plot``).
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.figures.comparison import write_pictures as write_pictures
    from fairbench.figures.latex import latex_table as latex_table
    from fairbench.figures.plan_and_trace import draw_plan as draw_plan
    from fairbench.figures.plan_and_trace import draw_trace as draw_trace
    from fairbench.figures.style import FORMATS as FORMATS
    from fairbench.figures.style import check_plot as check_plot

__getattr__ = lazy_names(
    __name__,
    {
        "plan_and_trace": "draw_plan draw_trace",
        "latex": "latex_table",
        "comparison": "write_pictures",
        "style": "FORMATS check_plot",
    },
)
