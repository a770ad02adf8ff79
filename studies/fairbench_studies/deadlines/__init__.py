"""The cost of meeting deadlines in fair shares, and the cost of fair shares in deadlines."""
