"""The study of remedies against stalls that long prompts cause."""
