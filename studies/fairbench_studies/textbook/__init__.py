"""A textbook's section on SLO-aware scheduling: its listing, and its output."""
