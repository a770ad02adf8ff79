"""The leaderboard: schedulers over the same configurations and seeds, with their ranks."""
