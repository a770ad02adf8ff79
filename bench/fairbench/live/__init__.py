"""Real servers: SGLang with our schedulers inside, a router in front, and a driver of programs."""
