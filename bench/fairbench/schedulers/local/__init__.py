"""Local schedulers: the order of one worker's queue, one policy in each file."""
