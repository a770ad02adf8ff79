"""The cost of meeting deadlines for fair shares, and the reverse."""
