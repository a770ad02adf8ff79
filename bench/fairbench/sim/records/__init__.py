"""Records of a simulation: logs in memory or on disk, and tables made from them."""
