"""The access list: rules that say who may do what, for every protocol (ADR 22)."""
