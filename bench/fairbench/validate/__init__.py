"""The simulator beside runs measured on a real server."""
