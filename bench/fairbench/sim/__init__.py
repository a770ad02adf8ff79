"""The simulator: clients, router and workers on one clock."""
