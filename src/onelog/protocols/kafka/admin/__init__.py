"""Topics, their settings and their files, as Kafka's administrators ask for them."""
