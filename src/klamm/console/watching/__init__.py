"""What the console knows of the cluster: one collector for all browsers, its picture, the history."""
