"""The study of memory as a fair share."""
