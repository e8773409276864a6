"""AMQP 0-9-1: exchanges are addresses, queues are cursors, a message is written once."""
