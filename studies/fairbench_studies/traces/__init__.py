"""The study of public traces: each trace is replayed under many schedulers."""
