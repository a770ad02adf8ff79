"""The trade-off between deadlines and fair shares: the cost of met deadlines in fair shares."""
