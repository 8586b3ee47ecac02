"""The web console: it looks at a cluster for all browsers, and serves pages and a JSON API."""
