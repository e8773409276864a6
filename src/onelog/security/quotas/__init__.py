"""Quotas: how much users, clients, listeners and addresses may do, and what waits or is refused."""
