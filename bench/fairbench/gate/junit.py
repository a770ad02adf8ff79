"""The outcome of a gate as JUnit XML, which every CI system reads."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from fairbench.gate.judge import Verdict
from fairbench.gate.outcome import Outcome

SUITE = "fairbench check"
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(outcome: Outcome, *, cannot_tell_fails: bool) -> str:
    """Return a test case per clause and point; inconclusive checks are failed or skipped."""
    failed = outcome.count(Verdict.FAIL)
    unknown = outcome.count(Verdict.CANNOT_TELL)
    counts = {
        "tests": str(len(outcome.rows)),
        "failures": str(failed + unknown if cannot_tell_fails else failed),
        "errors": "0",
        "skipped": "0" if cannot_tell_fails else str(unknown),
    }
    suites = ET.Element("testsuites", {"name": SUITE, **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": SUITE, "time": "0", **counts})
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", {"name": "basis", "value": _clean(outcome.basis)})
    for cause in outcome.causes:
        ET.SubElement(properties, "property", {"name": "cause", "value": _clean(cause)})
    for row in outcome.rows:
        names = {"classname": _clean(row.point), "name": _clean(row.clause), "time": "0"}
        case = ET.SubElement(suite, "testcase", names)
        if row.verdict is Verdict.PASS:
            continue
        skipped = row.verdict is Verdict.CANNOT_TELL and not cannot_tell_fails
        message = {"message": _clean(row.wording())}
        ET.SubElement(case, "skipped" if skipped else "failure", message)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Replace the characters that XML 1.0 cannot represent."""
    return NOT_XML.sub("?", text)
