"""What the commands of `klamm pipeline` print and ask. None of these modules imports Spark."""
