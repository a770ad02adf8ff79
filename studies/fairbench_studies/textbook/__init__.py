"""The reproduction of a textbook's listing on SLO-aware scheduling, and of its printed output."""
