"""The tables and pictures of README.md and docs/."""
