"""What is wrong with a cluster: facts are gathered, and checks make findings of them."""
