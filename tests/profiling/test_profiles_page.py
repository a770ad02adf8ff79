"""Test the pages on timing profiles against the bundle and the measured runs."""

import re
from pathlib import Path

import pytest

from fairbench.files.formats import dumps
from fairbench.hardware.catalogue import load_profile, profile_ids, table_of
from fairbench_calibration.profiling.derived_profile import derive
from fairbench_calibration.profiling.estimates import PACKAGE
from fairbench_studies.validation.serving.command import validate_serving
from tests.shared_data import SHARED, needs

DOCS = Path(__file__).parents[2] / "docs"
# the pages with the errors against measured runs, and with the bundled profiles
PAGES = DOCS / "guide/profiles.md", DOCS / "reference/derived-profile-rules.md"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
GPUS = ("a100-80gb", "h100-80gb", "h200-141gb", "l40s-48gb", "b200-180gb")
RUNS = SHARED / "data" / "residency_runs.jsonl.gz"


def test_the_page_lists_the_derived_profiles():
    listed = set()
    for model, tp, *cells in re.findall(r"^\| `(\S+)` \| (\d) \|" + 5 * r" (.+?) \|", TEXT, re.M):
        for gpu, cell in zip(GPUS, cells, strict=True):
            if cell.startswith(("operators", "roofline")):
                listed.add((f"{gpu}/{model}/tp{tp}", cell.split()[0]))
    grades = {"operators": "operators:", "roofline": "derived:"}
    bundled = {
        (name.rpartition("/")[0], kind)
        for name in profile_ids()
        for kind, beginning in grades.items()
        if load_profile(name).grade.startswith(beginning)
    }
    assert listed == bundled


@pytest.mark.slow
@needs(RUNS)
@pytest.mark.parametrize("roofline", [True, False])
def test_the_errors_against_measured_runs_are_current(tmp_path, roofline):
    if not roofline:
        pytest.importorskip(PACKAGE, reason="the profile extra is not installed")
    found = derive("qwen3-14b", "h100", engine="vllm", roofline=roofline)
    path = tmp_path / "qwen.toml"
    path.write_text(dumps(table_of(found.profile, found.source, {})))
    for run in validate_serving(RUNS, str(path), None).as_dict()["tenants"]:
        name = run["name"].removeprefix("vllm-h100-qwen3-14b-")
        (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", TEXT, re.M)
        stated = [[int(part) for part in re.findall(r"-?\d+", cell)] for cell in row.split("|")]
        throughput, tpot, ttft = stated[3:] if roofline else stated[:3]
        assert run["throughput_tok_s"]["error_pct"] == pytest.approx(throughput[0], abs=1)
        assert run["tpot_p50_ms"]["error_pct"] == pytest.approx(tpot[0], abs=1)
        errors = sorted(one["p50_s"]["error_pct"] for one in run["ttft"])
        assert errors[0] == pytest.approx(ttft[0], abs=1)
        assert errors[-1] == pytest.approx(ttft[-1], abs=1)
