"""The central scheduler of figure 4: one DLPM queue for all workers, and the cost of running it."""
