"""The modules that all studies share: folders of runs, tables and claims."""
