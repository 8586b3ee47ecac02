"""Reading and writing records for `klamm topic consume` and `klamm topic produce`."""
