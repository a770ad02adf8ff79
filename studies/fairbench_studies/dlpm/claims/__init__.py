"""The DLPM paper's claims, each judged by the numbers of a figure."""
