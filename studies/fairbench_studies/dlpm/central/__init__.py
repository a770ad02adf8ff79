"""The centralised design of figure 4: one DLPM scheduler for all workers, and its cost."""
