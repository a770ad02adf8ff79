"""The diagnosis of an access log: heavy clients, clients that wait for them, and a remedy."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_logs.diagnosis.access_log import read_log as read_log
    from fairbench_logs.diagnosis.diagnosis import DiagnosisInput as DiagnosisInput
    from fairbench_logs.diagnosis.diagnosis import diagnose as diagnose
    from fairbench_logs.diagnosis.diagnosis import recorded_waits as recorded_waits
    from fairbench_logs.diagnosis.page import diagnosis_page as diagnosis_page
    from fairbench_logs.diagnosis.text import diagnosis_json as diagnosis_json
    from fairbench_logs.diagnosis.text import diagnosis_text as diagnosis_text

# The default target limits the P95 TTFT of well-behaved clients. ``SESSION_SLO`` is for logs with
# sessions, and ``USUAL_SLO`` for logs without sessions.
USUAL_SLO = "victim_p95_s<2s"
SESSION_SLO = "victim_ttft_p95_s<2s"

__getattr__ = lazy_names(
    __name__,
    {
        "access_log": "read_log",
        "diagnosis": "DiagnosisInput diagnose recorded_waits",
        "page": "diagnosis_page",
        "text": "diagnosis_json diagnosis_text",
    },
)
