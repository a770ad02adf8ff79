"""The Python interface. The package ``fairbench`` exports all functions of ``fairbench.api``."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.api.comparison import Comparison as Comparison

__getattr__ = lazy_names(
    __name__,
    {
        "comparison": "Comparison",
    },
)
