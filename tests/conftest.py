"""What holds for every test."""

import os
from pathlib import Path

from hypothesis import settings

# Machines are noisy, so time is never a reason to fail a property.
settings.register_profile("fairbench", deadline=None)
settings.load_profile("fairbench")

# A few made-up requests stand for the recorded trace of workload vtc-arena, which is not shipped.
os.environ.setdefault("FAIRBENCH_DATA", str(Path(__file__).parent / "data"))
