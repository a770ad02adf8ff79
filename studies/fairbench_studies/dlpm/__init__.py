"""The DLPM paper: its figures and claims, and the configurations in which claims hold."""
