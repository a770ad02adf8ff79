"""The simulator compared with measured runs of the DLPM authors' judge benchmark."""
