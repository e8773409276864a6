"""Rows of the table for what single protocols have: sessions, groups, queues and the like."""

from __future__ import annotations

from typing import Final

from onelog.cli.api.rows import ApiCommand, Option

_SEEK = ("earliest", "latest", "time", "offset")
_ENDS = ("queue", "exchange")
_ARGUMENTS = Option(
    field="arguments",
    flag="argument",
    kind="table",
    about="NAME=VALUE, as x-message-ttl=60000. Repeatable.",
)
_TRANSIENT = Option(
    field="durable", flag="transient", kind="off", about="Not kept over a restart of the broker."
)
_BINDING = (
    Option(field="source", positional=True, required=True, about="The exchange."),
    Option(field="destination", positional=True, required=True, about="The queue."),
    Option(field="routing_key", positional=True, about="Which of its messages."),
    Option(
        field="destination_type",
        flag="to",
        choices=_ENDS,
        about="What it leads to: a queue when nothing is said.",
    ),
)

PROTOCOL_ROWS: Final = (
    ApiCommand(
        words="session list",
        asks="GET /sessions",
        about="List sessions of clients, by client id.",
        columns="client_id protocol owner:name attached expiry_ms:duration detached_ms"
        " cursors:length",
        empty="there are no sessions",
    ),
    ApiCommand(
        words="session end",
        asks="DELETE /sessions/{client}",
        about="End a session that has no connection now.",
        done="ended the session of {client}",
    ),
    ApiCommand(
        words="retained list",
        asks="GET /mqtt/retained",
        about="List retained messages, as in: onelog retained list 'sensors/#'.",
        options=(
            Option(field="filter", positional=True, about="A topic, or a filter with + and #."),
        ),
        columns="topic timestamp_ms value_text:text value_bytes stream partition:count"
        " offset:count value_base64:text",
        searches=False,
        empty="there are no retained messages",
        example="'sensors/#'",
    ),
    ApiCommand(
        words="retained clear",
        asks="DELETE /mqtt/retained",
        patient=True,
        about="Clear the retained messages of a filter, as in: onelog retained clear 'sensors/#'.",
        options=(
            Option(
                field="filter",
                positional=True,
                required=True,
                about="A topic, or a filter with + and #.",
            ),
        ),
        done="nothing is retained any more on {topics} topics",
        example="'sensors/#'",
    ),
    ApiCommand(
        words="will list",
        asks="GET /mqtt/wills",
        about="List wills that are kept, by client id.",
        columns="client_id topic:name user:name qos:count retain payload_bytes due_ms",
        empty="there are no wills",
    ),
    ApiCommand(
        words="group list",
        asks="GET /kafka/groups",
        about="List consumer groups.",
        columns="name state lag:count member_count:count generation:count protocol",
        empty="there are no consumer groups",
    ),
    ApiCommand(
        words="group show",
        asks="GET /kafka/groups/{group}",
        about="Show one consumer group: members, offsets, lag.",
    ),
    ApiCommand(
        words="group seek",
        asks="POST /kafka/groups/{group}/seek",
        about="Let a group without members go on elsewhere, as in: onelog group seek billing"
        " orders earliest.",
        options=(
            Option(
                field="topic", positional=True, required=True, about="The topic, as Kafka names it."
            ),
            Option(
                field="to", positional=True, required=True, choices=_SEEK, about="Where it goes on."
            ),
            Option(
                field="value", kind="time", about="The offset, or the time: a date or milliseconds."
            ),
            Option(field="partition", kind="number", about="In this partition only."),
        ),
        done="group {name} is {lag} records behind",
    ),
    ApiCommand(
        words="group delete",
        asks="DELETE /kafka/groups/{group}",
        about="Forget a group without members.",
        done="forgot group {group}",
    ),
    ApiCommand(
        words="transaction list",
        asks="GET /kafka/transactions",
        about="List transactional ids.",
        columns="id state producer_id epoch:count timeout_ms:duration started_ms updated_ms"
        " partitions:length",
        empty="there are no transactional ids",
    ),
    ApiCommand(
        words="transaction abort",
        asks="POST /kafka/transactions/{transaction}/abort",
        about="Abort an open transaction and fence its producer, as if it timed out.",
        done="aborted the transaction of {id}; its producer is fenced",
    ),
    ApiCommand(
        words="exchange create",
        asks="PUT /amqp/exchanges/{vhost}/{exchange}",
        about="Declare an exchange, as in: onelog exchange create alarms --type topic.",
        options=(
            Option(
                field="type",
                choices=("direct", "fanout", "topic", "headers"),
                about="How it leads messages on; direct when nothing is said.",
            ),
            _TRANSIENT,
            Option(field="auto_delete", kind="flag", about="It goes with its last binding."),
            Option(field="internal", kind="flag", about="No client may publish to it."),
            _ARGUMENTS,
        ),
        done="exchange {name} of type {type} is there",
    ),
    ApiCommand(
        words="exchange delete",
        asks="DELETE /amqp/exchanges/{vhost}/{exchange}",
        about="Delete an exchange and its bindings; what was sent to it stays in the log.",
        options=(
            Option(field="if_unused", kind="flag", about="Only if no binding leads from it."),
        ),
        done="deleted exchange {exchange}",
    ),
    ApiCommand(
        words="exchange list",
        asks="GET /amqp/exchanges",
        about="List exchanges.",
        columns="name type vhost:name durable auto_delete internal",
    ),
    ApiCommand(
        words="queue list",
        asks="GET /amqp/queues",
        about="List queues.",
        columns="name ready:count unacked:count consumers:count vhost:name type published:count"
        " delivered:count durable auto_delete exclusive cursor:name",
        empty="there are no queues",
    ),
    ApiCommand(
        words="queue create",
        asks="PUT /amqp/queues/{vhost}/{queue}",
        about="Declare a queue, as in: onelog queue create jobs --argument x-queue-type=quorum.",
        options=(
            _TRANSIENT,
            Option(field="auto_delete", kind="flag", about="It goes with its last consumer."),
            _ARGUMENTS,
        ),
        done="queue {name} is there; its topic is {topic}",
    ),
    ApiCommand(
        words="queue purge",
        asks="POST /amqp/queues/{vhost}/{queue}/purge",
        about="Settle all that waits in a queue; the log keeps the messages.",
        done="settled {messages} messages of queue {queue}",
    ),
    ApiCommand(
        words="queue delete",
        asks="DELETE /amqp/queues/{vhost}/{queue}",
        about="Delete a queue with what waits in it.",
        done="deleted queue {queue}",
    ),
    ApiCommand(
        words="binding create",
        asks="POST /amqp/bindings/{vhost}",
        about="Bind a queue to an exchange, as in: onelog binding create amq.topic jobs"
        " 'plant.*.alarm'.",
        options=(
            *_BINDING,
            _ARGUMENTS,
        ),
        done="what {source} gets with the key {routing_key} goes to {destination}",
    ),
    ApiCommand(
        words="binding delete",
        asks="DELETE /amqp/bindings/{vhost}",
        about="Remove a binding, as in: onelog binding delete amq.topic jobs 'plant.*.alarm'.",
        options=(
            *_BINDING,
            Option(
                field="key",
                about="Where several have the routing key: the key that `binding list` shows.",
            ),
        ),
        done="removed the binding",
    ),
    ApiCommand(
        words="binding list",
        asks="GET /amqp/bindings",
        about="List bindings that somebody made.",
        columns="source:name destination:name routing_key:name destination_type vhost:name"
        " key:name",
        empty="there are no bindings",
    ),
)
