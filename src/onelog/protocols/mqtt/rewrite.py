"""Topic rewrite: rules of the operator change topics of publishes and filters of subscriptions.

Rules:
- The first rule that matches is applied, once. A rule matches by a filter, and also by a regular
  expression if it has one. `$1`… are the groups of the expression; without one, the levels that the
  filter's wildcards stand for (`+` one level, `#` the rest).
- A subscription is matched as it is written: its own wildcards count as levels.
- Special prefixes (`$share/…`, `$replay/…`, `$exclusive/…`, `$delayed/…`) stay; the filter or topic
  behind them is rewritten. Other topics that begin with `$` never are.
- The result must be a valid topic or filter; otherwise the client is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from onelog.base.errors import ConfigError, InvalidName
from onelog.base.topics import check_filter, check_topic, covers
from onelog.config.mqtt_rules import RewriteRule
from onelog.protocols.mqtt import delayed
from onelog.protocols.mqtt.special import SubscribeAddress
from onelog.protocols.mqtt.templates import check_template, expand, names_client

Use = Literal["publish", "subscribe"]


class _Rule:
    __slots__ = ("_pattern", "names_client", "rule")

    def __init__(self, rule: RewriteRule) -> None:
        self.rule = rule
        self._pattern: re.Pattern[str] | None = None
        groups = sum(level in ("+", "#") for level in rule.filter.split("/"))
        try:
            check_filter(rule.filter)
            if rule.pattern:
                self._pattern = re.compile(rule.pattern)
                groups = self._pattern.groups
        except (InvalidName, re.error) as error:
            raise ConfigError(f"the rewrite rule for {rule.filter!r}: {error}") from error
        self.names_client = names_client(check_template(rule.to, groups))

    def match(self, text: str, use: Use) -> Sequence[str] | None:
        """The values of `$1`…; None: the rule does not match this text."""
        rule = self.rule
        if rule.applies not in ("all", use) or not covers(rule.filter, text):
            return None
        if self._pattern is None:
            return _wild(rule.filter, text)
        found = self._pattern.fullmatch(text)
        return None if found is None else [group or "" for group in found.groups()]


def _wild(rule: str, text: str) -> list[str]:
    levels = text.split("/")
    found = []
    for number, level in enumerate(rule.split("/")):
        if level == "+":
            found.append(levels[number])
        elif level == "#":
            found.append("/".join(levels[number:]))
    return found


class Rewriter:
    """All rules, in their order."""

    def __init__(self, rules: Sequence[RewriteRule] = ()) -> None:
        self._rules = [_Rule(rule) for rule in rules]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def topic(self, topic: str, client_id: str, user: str) -> str:
        """The topic that a publish goes to."""
        if not self._rules:
            return topic
        head = ""
        if topic.startswith(delayed.PREFIX):
            when, slash, inner = topic[len(delayed.PREFIX) :].partition("/")
            head, topic = f"{delayed.PREFIX}{when}{slash}", inner
        text = self._apply(topic, "publish", client_id, user)
        return head + (topic if text is None else check_topic(text))

    def route(self, topic: str, user: str) -> str | None:
        """The same for every client of a user; None: it depends on the client."""
        for rule in self._rules:
            groups = rule.match(topic, "publish")
            if groups is not None:
                if rule.names_client:
                    return None
                return check_topic(expand(rule.rule.to, "", user, groups))
        return topic

    def address(self, address: SubscribeAddress, client_id: str, user: str) -> SubscribeAddress:
        """The address of a SUBSCRIBE or UNSUBSCRIBE after rewriting."""
        if not self._rules:
            return address
        text = self._apply(address.filter, "subscribe", client_id, user)
        if text is None:
            return address
        return SubscribeAddress(address.kind, address.argument, check_filter(text))

    def _apply(self, text: str, use: Use, client_id: str, user: str) -> str | None:
        if text.startswith("$"):
            return None
        for rule in self._rules:
            groups = rule.match(text, use)
            if groups is not None:
                return expand(rule.rule.to, client_id, user, groups)
        return None
