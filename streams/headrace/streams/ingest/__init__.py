"""Recorded traces from elsewhere, made into headrace's own records."""
