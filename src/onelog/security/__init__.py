"""Who somebody is: users, passwords, SCRAM, certificates; one `Authenticator` for all protocols."""
