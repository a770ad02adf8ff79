"""Processes of servers: started side by side, ready, and ended, whatever ends the harness."""
