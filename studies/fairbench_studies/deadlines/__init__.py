"""The cost of deadlines to the fair share, and the reverse."""
