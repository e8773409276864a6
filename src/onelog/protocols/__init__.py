"""The protocols that clients speak: strangers to each other, each a way to reach the one door."""
