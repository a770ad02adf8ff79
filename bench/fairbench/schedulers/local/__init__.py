"""Local schedulers, which order the waiting queue of one worker, with one policy in each file."""
