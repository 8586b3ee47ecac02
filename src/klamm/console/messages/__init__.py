"""The messages of a topic as the console shows them: what a URL asks for, and the answers."""
