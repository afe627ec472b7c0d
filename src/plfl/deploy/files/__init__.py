"""What lies on disk at a server and at a client: settings, rosters, certificates, what is wrong
with them.
"""
