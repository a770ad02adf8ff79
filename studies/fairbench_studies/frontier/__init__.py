"""The frontier study: fair-finish against other scheduler pairs as published, capped, and tuned."""
