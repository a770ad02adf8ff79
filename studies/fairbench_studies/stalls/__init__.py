"""Remedies against stalls by long prompts."""
