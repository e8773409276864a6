"""Identity of peers: users, passwords, SCRAM, certificates; one `Authenticator` for all."""
