"""The frontier study: fair-finish against all scheduler pairs as published, capped, and tuned."""
