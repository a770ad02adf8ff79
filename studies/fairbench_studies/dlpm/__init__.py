"""The DLPM paper: its figures, its claims, and where they hold."""
