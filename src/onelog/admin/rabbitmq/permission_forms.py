"""RabbitMQ's permissions and our access rules: one said as the other.

Rules:
- A permission is what one user may configure, write and read in one virtual host, each a regular
  expression over names of queues and exchanges. It becomes several rules, and their notes keep the
  expression, so that it is shown as it was given.
- Configure is *create*, *configure* and *delete*. Write is *publish*. Read is *consume* of queues
  and *subscribe* of exchanges.
- Regular expressions are translated, never run: names and beginnings of names, with `|` between
  them. Any other expression is refused, because no rule can say it.
- To write to `amq.default` is to publish to every queue. `amq.topic` of the virtual host `/` is the
  root of the topic space: which topics a user may have, rules about topics say. A permission for
  everything includes it, any other one that takes its name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from onelog.admin.rabbitmq.requests import BadRequest
from onelog.broker import Action
from onelog.queues.addresses import (
    DEFAULT_VHOST,
    ROOT_EXCHANGE,
    exchange_root,
    level,
    queue_topic,
    queues_capture,
)
from onelog.security.access.patterns import has_placeholder
from onelog.security.access.rules import Rule, Target

EVERYTHING: Final = ".*"
RIGHTS: Final = ("configure", "write", "read")
DEFAULT_EXCHANGE: Final = "amq.default"
EXPRESSION_CHARS_MAX: Final = 100
"""Characters of one regular expression."""

_NOTE: Final = "RabbitMQ"
_PLAIN: Final = re.compile(r"(?:[A-Za-z0-9_:/@%~ -]|\\[^A-Za-z0-9])*")
_SEE: Final = (
    "permissions are access rules here, and no rule can say this expression: use .*, nothing, or"
    r" names and beginnings of names, as in ^jobs$ and ^app-.* and ^(a|b\.c)$"
)
_ROOT: Final = (
    "amq.topic is the topic space of every protocol, and a permission does not say which topics:"
    " use rules, as in `onelog acl add allow user:NAME publish,subscribe topic:FILTER`"
)

Row = dict[str, Any]


class Named(NamedTuple):
    """A name, or the beginning of names."""

    text: str
    is_prefix: bool


ALL: Final = Named("", True)


def names_of(expression: str) -> tuple[Named, ...]:
    """The names that an expression takes. Raises BadRequest."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise BadRequest(f"a permission has at most {EXPRESSION_CHARS_MAX} characters")
    if expression in ("", "^$"):
        return ()
    inner = re.fullmatch(r"\^\(([^()]*)\)(\$|\.\*\$?|)", expression)
    parts = (
        [f"^{part}{inner[2]}" for part in inner[1].split("|")]
        if inner is not None
        else expression.split("|")
    )
    return tuple(dict.fromkeys(map(_named, parts)))


def _named(part: str) -> Named:
    if part in (".*", "^.*", "^.*$", ".*$"):
        return ALL
    if not part.startswith("^"):
        raise BadRequest(_SEE)
    body = part[1:]
    is_prefix = not body.endswith("$") or body.endswith(r"\$")
    body = body if is_prefix else body[:-1]
    if body.endswith(".*") and not body.endswith(r"\.*"):
        is_prefix, body = True, body[:-2]
    text = re.sub(r"\\(.)", r"\1", body)
    if _PLAIN.fullmatch(body) is None or has_placeholder(text) or "*" in text:
        raise BadRequest(_SEE)
    return Named(text, is_prefix)


# -- from permissions to rules


def rules_of(vhost: str, user: str, body: Row) -> list[Rule]:
    """The rules of a permission. Raises BadRequest."""
    made = []
    for right in RIGHTS:
        expression = body.get(right)
        if not isinstance(expression, str):
            raise BadRequest("not_strings", right)
        note = note_of(vhost, right, expression)
        for name in names_of(expression):
            for target, pattern, actions in rules_for(vhost, right, name):
                made.append(
                    Rule(
                        id="",
                        effect="allow",
                        who=(f"user:{user}",),
                        actions=actions,
                        target=target,
                        pattern=pattern,
                        note=note,
                    )
                )
    return made


def rules_for(
    vhost: str, right: str, name: Named
) -> Iterator[tuple[Target, str, tuple[Action, ...]]]:
    """What the rules of a right to a name are about, and what they allow. Raises BadRequest."""
    if right == "read":
        yield Target.CURSOR, _cursor(vhost, name), (Action.CONSUME,)
    actions: tuple[Action, ...] = {
        "configure": (Action.CREATE, Action.CONFIGURE, Action.DELETE),
        "write": (Action.PUBLISH,),
        "read": (Action.SUBSCRIBE,),
    }[right]
    if name == ALL and vhost == DEFAULT_VHOST:
        yield Target.TOPIC, "#", actions
        return
    if right != "configure" and _takes(name, ROOT_EXCHANGE):
        root = exchange_root(vhost, ROOT_EXCHANGE)
        if not root:
            raise BadRequest(_ROOT)
        yield Target.TOPIC, f"{root}/#", actions
    if right == "write" and _takes(name, DEFAULT_EXCHANGE):
        yield Target.TOPIC, queues_capture(vhost), actions
    for target, pattern in _places(vhost, name):
        yield target, pattern, actions


def _places(vhost: str, name: Named) -> Iterator[tuple[Target, str]]:
    """The topics of queues and exchanges that have these names."""
    queue, exchange = queue_topic(vhost, name.text), exchange_root(vhost, name.text)
    if name.is_prefix:
        yield Target.PREFIX, queue
        if name.text != ROOT_EXCHANGE:
            yield Target.PREFIX, exchange
    elif name.text not in (ROOT_EXCHANGE, DEFAULT_EXCHANGE):
        yield Target.TOPIC, queue
        yield Target.TOPIC, f"{exchange}/#"


def _takes(name: Named, text: str) -> bool:
    return text.startswith(name.text) if name.is_prefix else text == name.text


def _cursor(vhost: str, name: Named) -> str:
    space = "queue" if vhost == DEFAULT_VHOST else f"queue@{level(vhost)}"
    return f"{space}/{name.text}" + "*" * name.is_prefix


# -- from rules to permissions


def note_of(vhost: str, right: str, expression: str) -> str:
    """What the rules of a permission say of where they come from."""
    return f"{_NOTE} {quote(vhost, safe='')} {right} {expression}"


def is_of(rule: Rule, vhost: str, user: str) -> bool:
    """Whether a rule is part of the permission of a user in a virtual host."""
    return rule.who == (f"user:{user}",) and rule.note.startswith(
        f"{_NOTE} {quote(vhost, safe='')} "
    )


def is_given(rule: Rule) -> bool:
    """Whether this API made a rule."""
    return rule.note.partition(" ")[0] == _NOTE and len(rule.who) == 1


def permissions_of(rules: Iterable[Rule]) -> list[Row]:
    """Every permission that was given by this API, as it was given."""
    found: dict[tuple[str, str], Row] = {}
    for rule in rules:
        if not is_given(rule):
            continue
        vhost, right, expression = (*rule.note.split(" ", 3)[1:], "", "", "")[:3]
        user = rule.who[0].removeprefix("user:")
        if right in RIGHTS:
            row = found.setdefault(
                (user, vhost),
                {"user": user, "vhost": unquote(vhost), **dict.fromkeys(RIGHTS, "")},
            )
            row[right] = expression
    return list(found.values())
