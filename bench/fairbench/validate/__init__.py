"""The simulator compared with runs measured on real servers."""
