"""The fairbench schedulers that replay the scheduling policies of the DLPM authors' server."""

from __future__ import annotations

from typing import Any, NamedTuple

from fairbench.errors import DataError, unknown_name


class Replayed(NamedTuple):
    """A router, a local scheduler, and the name of the parameter that the option ``--Q`` sets."""

    router: str
    local: str
    quantum: str | None = None


# ``POLICIES`` maps each --schedule-policy of a measured server to the schedulers that simulate it.
# With a single replica, the router has no choice.
POLICIES = {
    "fcfs": Replayed("round-robin", "fcfs"),
    "lpm": Replayed("round-robin", "lpm"),
    "vtc": Replayed("round-robin", "vtc"),
    "mdrr": Replayed("round-robin", "mdrr", "mdrr.quantum"),
    "lpm_mdrr": Replayed("round-robin", "dlpm", "dlpm.quantum"),
    "preble": Replayed("preble-e2-code", "preble-groups-code"),
}
# Without --schedule-policy, a server uses LPM, the default of SGLang in 2024.
POLICIES["default"] = POLICIES["lpm"]


def scheduler_of(policy: str, quantum: int) -> tuple[Replayed, dict[str, Any]]:
    """Return the fairbench schedulers for a policy of the measured server, and their settings.

    Raises: DataError: no scheduler of fairbench corresponds to the policy.
    """
    if policy not in POLICIES:
        raise DataError(str(unknown_name("schedule policy", policy, POLICIES)))
    ours = POLICIES[policy]
    return ours, {ours.quantum: quantum} if ours.quantum and quantum else {}
