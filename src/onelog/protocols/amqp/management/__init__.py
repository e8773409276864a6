"""What RabbitMQ's management API shows and changes: rows and verbs, without HTTP."""
