"""The strawman of figure 4: one DLPM scheduler for all workers, and what a round of it costs."""
