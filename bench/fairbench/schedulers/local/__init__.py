"""Local schedulers, which order the waiting queue of one worker."""
