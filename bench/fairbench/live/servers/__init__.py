"""Worker processes: started, made ready, verified and stopped, whatever ends the harness."""
