"""The DLPM paper: its figures, its claims, and a map of the settings in which the claims hold."""
