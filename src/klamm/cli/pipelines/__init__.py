"""What the commands of `klamm pipeline` are made of: each module does one thing, and none imports Spark."""
