"""Parts from which policies are built; no part is a policy itself.

``fleet`` has the live workers of any router. ``worker_credits`` has the accounts of D2LPM, and
``finishes`` the estimates of ``fair-finish``. Modules named ``preble_*`` have the costs, the prefix
tree and the load windows of Preble. ``slack`` has the deadlines of running requests.
"""
