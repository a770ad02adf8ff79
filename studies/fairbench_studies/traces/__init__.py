"""The study of public traces, each replayed under many schedulers."""
