"""A textbook's section on SLO-aware scheduling: the listing and the listing's output."""
