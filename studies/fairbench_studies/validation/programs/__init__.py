"""The simulator beside runs of programs that the DLPM authors' own benchmark measured."""
