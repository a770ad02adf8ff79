"""The DLPM paper: its figures and claims, and configurations in which claims hold."""
