"""The study of remedies for stalls, in which a long prompt delays the tokens of other requests."""
