"""Local schedulers, which order the queue of one worker; a file has one policy and its variants."""
