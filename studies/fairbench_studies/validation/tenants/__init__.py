"""The simulator beside runs of several tenants whose requests went straight to an engine."""
