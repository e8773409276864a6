"""The protocols that clients speak: none imports another, each reaches the broker by the door."""
