"""Files for tests that the project does not ship. They are in ``shared`` beside the checkout."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
PROFILES = SHARED / "profiles"
VTC_RUNS = SHARED / "data/vtc_measured_runs.jsonl.gz"
SERVING_RUNS = SHARED / "data/serving_measured_runs.jsonl.gz"
VLLM_MIXED_RUNS = SHARED / "data/serving_vllm_mixed.jsonl.gz"


def needs(path):
    """Skip a test if the file is absent, and name the file."""
    return pytest.mark.skipif(
        not path.exists(),
        reason=f"needs shared/{path.relative_to(SHARED)} beside the checkout, which is not shipped",
    )
