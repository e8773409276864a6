"""Commands over the admin API, made from one table."""
