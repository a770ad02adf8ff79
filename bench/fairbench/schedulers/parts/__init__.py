"""Components from which policies are built.

``fleet`` tracks the live workers of a router. ``worker_credits`` contains the accounts of D2LPM,
and ``finishes`` the estimates of ``fair-finish``. The modules ``preble_*`` contain Preble's costs,
prefix tree and load windows. ``slack`` estimates the spare time of requests until their deadlines.
"""
