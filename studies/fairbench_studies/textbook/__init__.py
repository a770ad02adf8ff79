"""The textbook's section on SLO-aware scheduling: its listing, and what it prints."""
