"""The leaderboard of all schedulers."""
