"""The frontier of schedulers: fair-finish against all pairs, as published, capped, tuned."""
