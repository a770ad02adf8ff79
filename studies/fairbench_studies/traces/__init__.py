"""Public traces under many schedulers."""
