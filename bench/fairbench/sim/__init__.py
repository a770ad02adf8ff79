"""The simulator, in which clients, routers and workers share a simulated clock."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.sim.records import FOLDER as FOLDER
    from fairbench.sim.run import simulate as simulate

__getattr__ = lazy_names(__name__, {"records": "FOLDER", "run": "simulate"})
