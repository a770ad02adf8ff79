"""Schedulers, routers and gateway policies of others, for comparison."""
