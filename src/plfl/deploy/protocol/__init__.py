"""What server and client say to each other, and what each allows: no network in here."""
