"""Reports: tables and pages of stored results. Nothing here runs or stores anything."""
