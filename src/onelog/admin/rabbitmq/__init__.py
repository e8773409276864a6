"""RabbitMQ's management API: its paths, fields and errors, over what AMQP offers."""
