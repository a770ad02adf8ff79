"""The trade-off between deadlines and fair shares: meeting deadlines costs shares."""
