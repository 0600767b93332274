"""The demo's page as files: its body, its style, its scripts."""
