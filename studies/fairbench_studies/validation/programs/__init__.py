"""The simulator compared with runs of the DLPM authors' benchmark of programs."""
