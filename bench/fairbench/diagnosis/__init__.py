"""The diagnosis of an access log: heavy clients, their victims, and a remedy."""

# The defaults: the present scheduler, the fair ones that it is compared with, and the target.
FCFS = "fcfs"
FAIR = ("vtc", "d2lpm", "fair-finish")
USUAL_SLO = "victim_p95_s<2s"  # metrics of time to first token; in a log with sessions:
SESSION_SLO = "victim_ttft_p95_s<2s"
