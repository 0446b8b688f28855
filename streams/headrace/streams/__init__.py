"""Stream processors, the client, and what they share."""
