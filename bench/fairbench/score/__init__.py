"""Records of requests from other tools, read into our tables and scored by our metrics."""
