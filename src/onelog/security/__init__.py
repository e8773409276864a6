"""Who somebody is: users, passwords, SCRAM, certificates; one `Authenticator` for all protocols."""

from onelog.security.authenticator import Authenticator, SecuritySettings
from onelog.security.identity import ANONYMOUS, Identity
from onelog.security.scram import SCRAM_SHA_256, SCRAM_SHA_512, ScramExchange
from onelog.security.users import UserInfo, Users

__all__ = [
    "Authenticator",
    "SecuritySettings",
    "Identity",
    "ANONYMOUS",
    "ScramExchange",
    "SCRAM_SHA_256",
    "SCRAM_SHA_512",
    "Users",
    "UserInfo",
]
