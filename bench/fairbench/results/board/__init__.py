"""The leaderboard: every scheduler over the same places and seeds, and which ranks are certain."""
