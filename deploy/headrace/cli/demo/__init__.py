"""`headrace demo`: traces through the whole pipeline, and an account of every record."""
