"""The DLPM paper's claims, each judged by the numbers behind one of the figures."""
