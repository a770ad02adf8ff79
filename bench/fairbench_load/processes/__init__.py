"""Server processes, which start in parallel and always end with the parent process."""
