"""Payment for prefixes that clients share."""
