"""A reproduction of a textbook's listing on SLO-aware scheduling, and of the printed output."""
