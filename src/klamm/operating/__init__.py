"""What the command line and the console both do to a cluster."""
