"""Records of a simulation: logs in memory or on disk, and the tables made of them."""
