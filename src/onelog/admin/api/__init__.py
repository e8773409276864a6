"""The admin API: one declared table of operations, from which routes and OpenAPI come."""
