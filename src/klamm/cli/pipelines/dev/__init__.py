"""`klamm pipeline dev`: the terminal, and the socket by which other commands use its Spark session."""
