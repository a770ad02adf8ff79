"""Records of requests from other tools, converted to tables and scored."""
