"""The frontier study: fair-finish against scheduler pairs as published, capped, and tuned."""
