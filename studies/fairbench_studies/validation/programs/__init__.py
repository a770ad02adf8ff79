"""The simulator compared with runs of programs measured by the DLPM authors' benchmark."""
