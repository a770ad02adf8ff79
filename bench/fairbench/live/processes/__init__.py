"""Server processes: started in parallel, awaited, and always ended with the parent process."""
