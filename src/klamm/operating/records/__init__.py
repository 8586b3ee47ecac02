"""Records as commands and the console read, search, show, export and write them."""
