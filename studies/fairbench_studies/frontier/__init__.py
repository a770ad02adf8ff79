"""The frontier of schedulers: fair finish beside every other pair, as published, capped, tuned."""
