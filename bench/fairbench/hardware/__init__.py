"""The timing profiles of GPUs, and the settings of engines on GPUs.

The module ``catalogue`` finds the timing profile of a GPU and model. ``timing`` computes the
duration of iterations and the size of the KV pool. ``engine_params`` fills in an engine's default
parameters for the hardware.
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.hardware.catalogue import table_of as table_of
    from fairbench.hardware.engines import DEFAULT_ENGINE as DEFAULT_ENGINE
    from fairbench.hardware.engines import DISAGGREGATION as DISAGGREGATION
    from fairbench.hardware.engines import DisaggregationParams as DisaggregationParams

__getattr__ = lazy_names(
    __name__,
    {"engines": "DEFAULT_ENGINE DISAGGREGATION DisaggregationParams", "catalogue": "table_of"},
)
