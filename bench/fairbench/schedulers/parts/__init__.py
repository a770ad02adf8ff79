"""Components from which policies are built.

``fleet`` tracks the live workers of a router. ``worker_credits`` has the accounts of D2LPM, and
``finishes`` has the estimates of ``fair-finish``. The modules ``preble_*`` have Preble's costs,
prefix tree and load windows. ``slack`` estimates the spare time of requests until their deadlines.
"""
