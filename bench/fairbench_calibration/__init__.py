"""Commands that make timing profiles, and compare the simulator with real servers."""

from fairbench.doors import Command

PROFILE = Command(
    "Simulate and compare",
    "Make a timing profile of a model on a GPU or a live server.",
    "fairbench_calibration.cli_profile:profile",
)
VALIDATE = Command(
    "Logs and records",
    "Replay measured runs in the simulator, and compare the results.",
    "fairbench_calibration.cli_validate:validate",
)
ENGINE_CHECK = Command(
    "Continuous integration",
    "Compare an engine's own decisions with fairbench's model.",
    "fairbench_calibration.cli_engine_check:engine_check",
)
DOCTOR = Command(
    "Real servers",
    "Test whether a flood of one client makes another client wait.",
    "fairbench_calibration.cli_doctor:doctor",
)
