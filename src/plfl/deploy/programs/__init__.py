"""The programs that people start: server, client, demo, backup, status."""
