"""The pages of the console, one module each, and the list of them."""
