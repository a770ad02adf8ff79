"""Schedulers, routers and gateway policies of other projects, for comparison."""
