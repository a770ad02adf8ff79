"""The trade-off between deadlines and fair shares: what meeting deadlines costs in shares."""
