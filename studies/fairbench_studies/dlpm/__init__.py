"""The DLPM paper: figures, claims, and configurations in which claims hold."""
