"""The trade-off between deadlines and fair shares: what each costs in terms of the other."""
