"""Scripts that make the tables and pictures of README.md and docs/."""
