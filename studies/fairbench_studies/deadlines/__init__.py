"""The trade-off between meeting deadlines and fair shares."""
