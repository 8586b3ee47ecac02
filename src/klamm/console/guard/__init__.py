"""Who may read and act: the login, the origin of requests, and what browsers may load."""
