"""What is counted on the way of requests, and the text that a scrape gets."""
