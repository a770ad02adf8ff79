"""Names of our own metrics in a vLLM server, besides those by client. Imports nothing."""

PROOF = "fairbench_scheduler"  # its labels say which scheduler runs
LIMIT = "fairbench_max_running_requests"
RESIDENCY = "fairbench_client_residency"
