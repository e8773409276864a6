"""The one table: which command asks which operation of the admin API.

Rules: it is total. A test fails when the API has an operation without a row here, or a row's
options are not those that the operation takes. `docs/reference/cli.md` is generated from it.
"""

from __future__ import annotations

from typing import Final

from onelog.cli.api.cluster_rows import CLUSTER_ROWS
from onelog.cli.api.protocol_rows import PROTOCOL_ROWS
from onelog.cli.api.rows import ApiCommand, Option
from onelog.cli.api.store_rows import STORE_ROWS

NOUNS: Final = {
    "node": "The nodes of the cluster.",
    "listener": "What listens where.",
    "connection": "Connections of every protocol: list, search, end.",
    "stream": "Make, change, show or delete streams, while the server runs.",
    "partition": "Partitions of a stream: offsets, sizes, states.",
    "segment": "Segments of a partition.",
    "topic": "Topics: search, levels, and one picture of who reads one.",
    "message": "Look at messages by filter, offset or time; publish one.",
    "event": "Live events: rates, alarms, messages.",
    "cursor": "Cursors of every kind: where they stand, how far they are behind.",
    "view": "Give filters friendly names, under which Kafka clients read them.",
    "session": "Sessions of clients.",
    "retained": "Retained messages.",
    "will": "Wills that are kept.",
    "group": "Consumer groups of Kafka.",
    "transaction": "Transactional ids of Kafka.",
    "exchange": "Exchanges of AMQP.",
    "queue": "Queues of AMQP.",
    "binding": "Bindings of AMQP.",
    "user": "Add, list, change or remove users, while the server runs or not.",
    "token": "Create, list or revoke tokens of the admin API.",
    "acl": "Say who may do what: rules for every protocol, which apply at once.",
    "pipeline": "Data pipelines on Spark: topics to tables and topics.",
    "quota": "Say how much users, clients, listeners and addresses may do.",
    "ban": "List or lift bans of addresses whose logins failed.",
    "config": "Show, check, write or change the configuration.",
    "backup": "Make, list, check or delete backups of a running broker.",
    "store": "The object store: what it was asked and cost, whether it can be trusted.",
    "cluster": "The cluster: its nodes and its metadata in etcd.",
}
"""The first words of commands, and what each is about."""

LIVE: Final = {
    "connection": "connection list",
    "stream": "stream list",
    "topic": "topic list",
    "cursor": "cursor list",
    "view": "view list",
    "client": "session list",
    "group": "group list",
    "queue": "queue list",
    "user": "user list",
    "token": "token list",
    "rule": "acl list",
    "entity": "quota list",
    "address": "ban list",
}
"""Which list holds the names that a name in a path may be: the shell completes them."""

_SEEK = ("earliest", "latest", "time", "offset")
_LEVELS = ("debug", "info", "warning", "error")

_HERE: Final = (
    ApiCommand(
        words="audit",
        asks="GET /audit",
        about="Who changed what, who failed to log in.",
        by_hand=True,
    ),
    ApiCommand(
        words="overview",
        asks="GET /overview",
        about="Show the whole at a glance: counts, disk, alarms, totals and rates.",
        second="rates",
    ),
    ApiCommand(
        words="info",
        asks="GET /info",
        about="Show the server's process: version, uptime, kernel, listeners.",
    ),
    ApiCommand(
        words="node list",
        asks="GET /nodes",
        about="List the nodes of the cluster.",
        columns="id:name name state version here started_ms",
        searches=False,
    ),
    ApiCommand(
        words="listener list",
        asks="GET /listeners",
        about="List what listens where.",
        columns="name address:name url:name",
        searches=False,
    ),
    ApiCommand(
        words="connection list",
        asks="GET /connections",
        about="List connections of every protocol, as in: onelog connection list --protocol mqtt.",
        options=(
            Option(
                field="protocol", about="Of one protocol only.", choices=("mqtt", "kafka", "amqp")
            ),
            Option(field="user", about="Of one user only, by the exact name."),
        ),
        columns="id protocol user client_id:name state version address:name via connected_ms"
        " received_bytes sent_bytes subscriptions:count",
        empty="there are no connections",
        example="--protocol mqtt",
    ),
    ApiCommand(
        words="connection show",
        asks="GET /connections/{connection}",
        about="Show one connection.",
    ),
    ApiCommand(
        words="connection kick",
        asks="POST /connections/{connection}/kick",
        about="End a connection, as in: onelog connection kick mqtt-127.0.0.1:50000.",
        options=(Option(field="reason", about="What the client and the log hear."),),
        done="asked {connections} connections to close",
    ),
)

_LOG: Final = (
    ApiCommand(
        words="stream list",
        asks="GET /streams",
        about="List the streams.",
        options=(Option(field="internal", kind="flag", about="Also those of the broker itself."),),
        columns="name captures partitions:count records:count size_bytes engine durability cleanup"
        " tier",
        empty="there are no streams",
    ),
    ApiCommand(
        words="stream create",
        asks="POST /streams",
        about="Make a stream.",
        by_hand=True,
    ),
    ApiCommand(
        words="stream show",
        asks="GET /streams/{stream}",
        about="Show a stream.",
        by_hand=True,
    ),
    ApiCommand(
        words="stream alter",
        asks="PATCH /streams/{stream}",
        about="Change a stream.",
        by_hand=True,
    ),
    ApiCommand(
        words="stream delete",
        asks="DELETE /streams/{stream}",
        about="Delete a stream and every record in it.",
        by_hand=True,
    ),
    ApiCommand(
        words="partition list",
        asks="GET /streams/{stream}/partitions",
        about="List the partitions of a stream, as in: onelog partition list main.",
        columns="partition:count start_offset:count end_offset:count size_bytes segments:count"
        " state high_watermark:count last_stable_offset:count durable_offset:count",
        searches=False,
        example="main",
    ),
    ApiCommand(
        words="partition trim",
        asks="POST /streams/{stream}/partitions/{partition}/trim",
        about="Delete the records of a partition below an offset, as in: onelog partition trim main"
        " 0 --before 100.",
        options=(
            Option(
                field="before", kind="number", required=True, about="The first offset that stays."
            ),
        ),
        done="partition {partition} of {stream} begins at offset {start_offset}",
        example="main 0 --before 0",
    ),
    ApiCommand(
        words="segment list",
        asks="GET /streams/{stream}/partitions/{partition}/segments",
        about="List the segments of a partition, as in: onelog segment list main 0.",
        columns="base_offset:count end_offset:count size_bytes newest_ms sealed created_ms",
        searches=False,
        example="main 0",
    ),
    ApiCommand(
        words="topic list",
        asks="GET /topics",
        about="List topics, as in: onelog topic list 'sensors/#' --last.",
        options=(
            Option(field="filter", positional=True, about="A topic, or a filter with + and #."),
            Option(field="last", kind="flag", about="Also the last message of each."),
        ),
        columns="topic stream partition:count last.timestamp_ms last.value_text:text",
        empty="no topic of this filter is known",
        example="'sensors/#' --last",
    ),
    ApiCommand(
        words="topic tree",
        asks="GET /topic-tree",
        about="List the levels of topics below a prefix, as in: onelog topic tree sensors.",
        options=(
            Option(field="prefix", positional=True, about="Levels above; without it, the root."),
        ),
        columns="name topic:name is_topic below:count",
        searches=False,
        page_max=0,
        empty="there is no topic below that",
        example="sensors",
    ),
    ApiCommand(
        words="topic show",
        asks="GET /topics/{topic}",
        about="Show one topic: where it lies, its last message, every cursor that reads it.",
        example="sensors/d1/temperature",
    ),
    ApiCommand(
        words="message peek",
        asks="GET /messages",
        about="Look at messages; reading them changes nothing. As in: onelog message peek"
        " 'sensors/#' --start time --time 2026-01-31T12:00:00Z.",
        options=(
            Option(field="filter", positional=True, about="A topic, or a filter with + and #."),
            Option(
                field="start",
                choices=("newest", "earliest", "time", "offset"),
                about="The newest ones, newest first; or from there on.",
            ),
            Option(field="time_ms", flag="time", kind="time", about="For --start time."),
            Option(field="stream", about="For --start offset."),
            Option(field="partition", kind="number", about="For --start offset."),
            Option(field="offset", kind="number", about="For --start offset."),
            Option(field="value_bytes", kind="bytes", about="So much of each value is shown."),
        ),
        columns="topic timestamp_ms value_text:text stream partition:count offset:count"
        " key_text:text value_base64:text",
        searches=False,
        page_max=500,
        rows_default=50,
        empty="no message was found",
        example="'sensors/#' --start earliest",
    ),
    ApiCommand(
        words="message publish",
        asks="POST /messages",
        about="Publish one message over the admin API; `onelog pub` publishes many. As in: onelog"
        " message publish sensors/d1/temperature 21.5.",
        options=(
            Option(field="topic", positional=True, required=True, about="Where to."),
            Option(field="text", positional=True, about="The value."),
            Option(field="base64", about="The value, where it is no text."),
            Option(field="key", about="The key; without it, the topic."),
            Option(field="headers", flag="header", kind="headers", about="NAME=VALUE; repeatable."),
            Option(field="content_type", about="What the value is, as text/plain."),
            Option(field="retain", kind="flag", about="MQTT keeps it for later subscribers."),
        ),
        done="published at offset {offset} of partition {partition} of {stream}",
        example="sensors/d1/temperature 21.5",
    ),
    ApiCommand(
        words="event follow",
        asks="GET /events",
        about="Follow live events: rates, alarms and messages.",
        by_hand=True,
    ),
    ApiCommand(
        words="cursor list",
        asks="GET /cursors",
        about="List cursors of every kind, as in: onelog cursor list --protocol mqtt.",
        options=(
            Option(
                field="protocol",
                about="Of one protocol only.",
                choices=("mqtt", "kafka", "amqp", "embedded"),
            ),
        ),
        columns="name kind lag:count pending:count connected:count filter protocol durable",
        empty="there are no cursors",
    ),
    ApiCommand(
        words="cursor show",
        asks="GET /cursors/{cursor}",
        about="Show one cursor: where it stands in each partition.",
    ),
    ApiCommand(
        words="cursor seek",
        asks="POST /cursors/{cursor}/seek",
        about="Let a cursor go on elsewhere; what consumers have stays with them. As in: onelog"
        " cursor seek kafka:billing earliest.",
        options=(
            Option(
                field="to", positional=True, required=True, choices=_SEEK, about="Where it goes on."
            ),
            Option(
                field="value", kind="time", about="The offset, or the time: a date or milliseconds."
            ),
            Option(field="stream", about="In this stream only; of a Kafka group: this topic."),
            Option(field="partition", kind="number", about="In this partition only."),
        ),
        done="cursor {name} is {lag} records behind",
    ),
    ApiCommand(
        words="cursor reset",
        asks="POST /cursors/{cursor}/reset",
        about="Let a cursor begin as a new one: queues and sessions at the end, others at the"
        " start.",
        done="cursor {name} is {lag} records behind",
    ),
    ApiCommand(
        words="cursor purge",
        asks="POST /cursors/{cursor}/purge",
        about="Skip all that waits in a cursor; the log keeps the records.",
        done="nothing waits in {cursor} any more",
    ),
    ApiCommand(
        words="cursor redrive",
        asks="POST /cursors/{cursor}/redrive",
        about="Let messages that a queue gave up come again.",
        done="{records} messages come again; {gone} are gone, {skipped} were left where they are",
    ),
    ApiCommand(
        words="cursor delete",
        asks="DELETE /cursors/{cursor}",
        about="Forget a cursor, and the session, queue or group behind it; the log keeps the"
        " records.",
        done="forgot cursor {cursor}",
    ),
    ApiCommand(
        words="view list",
        asks="GET /views",
        about="List the views with friendly names.",
        by_hand=True,
    ),
    ApiCommand(
        words="view create", asks="POST /views", about="Give a filter a name.", by_hand=True
    ),
    ApiCommand(words="view show", asks="GET /views/{view}", about="Show one view."),
    ApiCommand(
        words="view delete", asks="DELETE /views/{view}", about="Take a name away.", by_hand=True
    ),
)

_PEOPLE: Final = (
    ApiCommand(
        words="login-ways",
        asks="GET /login",
        about="Show how people may log in there, beside a user and a password.",
    ),
    ApiCommand(words="login", asks="POST /login", about="Log in at a server.", by_hand=True),
    ApiCommand(words="logout", asks="POST /logout", about="End a login.", by_hand=True),
    ApiCommand(
        words="whoami", asks="GET /session", about="Show who asks, and what that is worth there."
    ),
    ApiCommand(words="user list", asks="GET /users", about="List the users.", by_hand=True),
    ApiCommand(words="user add", asks="POST /users", about="Add a user.", by_hand=True),
    ApiCommand(words="user show", asks="GET /users/{user}", about="Show one user."),
    ApiCommand(words="user role", asks="PATCH /users/{user}", about="Change a user.", by_hand=True),
    ApiCommand(
        words="user remove", asks="DELETE /users/{user}", about="Remove a user.", by_hand=True
    ),
    ApiCommand(words="token list", asks="GET /tokens", about="List the tokens.", by_hand=True),
    ApiCommand(words="token create", asks="POST /tokens", about="Create a token.", by_hand=True),
    ApiCommand(
        words="token revoke", asks="DELETE /tokens/{token}", about="Revoke a token.", by_hand=True
    ),
    ApiCommand(
        words="acl status",
        asks="GET /access",
        about="Show whether there are access rules, or everything is open.",
    ),
    ApiCommand(words="acl list", asks="GET /access/rules", about="List the rules.", by_hand=True),
    ApiCommand(words="acl add", asks="POST /access/rules", about="Add a rule.", by_hand=True),
    ApiCommand(
        words="acl show", asks="GET /access/rules/{rule}", about="Show one rule, by its name."
    ),
    ApiCommand(
        words="acl replace",
        asks="PUT /access/rules/{rule}",
        about="Replace a rule in one step, as in: onelog acl replace 3 allow user:alice"
        " publish,subscribe topic:home/%u/#.",
        options=(
            Option(
                field="effect",
                positional=True,
                required=True,
                choices=("allow", "deny"),
                about="A rule that denies wins.",
            ),
            Option(
                field="who",
                kind="commas",
                positional=True,
                required=True,
                about="user:NAME, group:NAME and the like, with commas between.",
            ),
            Option(
                field="actions",
                kind="commas",
                positional=True,
                required=True,
                about="publish, subscribe and the like, with commas between; or all.",
            ),
            Option(
                field="resource",
                positional=True,
                required=True,
                about="topic:FILTER, prefix:TEXT, cursor:PATTERN or server.",
            ),
            Option(field="note", about="Why the rule is there."),
        ),
        done="rule {id} is now: {text}",
    ),
    ApiCommand(
        words="acl remove",
        asks="DELETE /access/rules/{rule}",
        about="Remove rules.",
        by_hand=True,
    ),
    ApiCommand(
        words="acl test", asks="POST /access/test", about="Ask who may do what.", by_hand=True
    ),
    ApiCommand(
        words="acl groups",
        asks="GET /access/groups",
        about="List groups of users: who is in them, which rules name them.",
        columns="name users:name rules:name",
        empty="there are no groups; `onelog user groups NAME GROUP` puts a user into one",
    ),
    ApiCommand(words="quota list", asks="GET /quotas", about="List the quotas.", by_hand=True),
    ApiCommand(
        words="quota show", asks="GET /quotas/{entity}", about="Show one quota, by its entity."
    ),
    ApiCommand(words="quota set", asks="PUT /quotas/{entity}", about="Set limits.", by_hand=True),
    ApiCommand(
        words="quota remove", asks="DELETE /quotas/{entity}", about="Remove a quota.", by_hand=True
    ),
    ApiCommand(words="ban list", asks="GET /bans", about="List the bans.", by_hand=True),
    ApiCommand(words="ban lift", asks="DELETE /bans/{address}", about="Lift a ban.", by_hand=True),
    ApiCommand(
        words="pipeline list",
        asks="GET /pipelines",
        about="List the pipelines of a data directory.",
        by_hand=True,
    ),
    ApiCommand(
        words="pipeline status",
        asks="GET /pipelines/{pipeline}",
        about="Show the progress of a pipeline.",
        by_hand=True,
    ),
    ApiCommand(
        words="config list",
        asks="GET /config",
        about="List the configuration of the running server: keys, values, where they came from.",
        columns="key value source hot",
        example="--filter log",
    ),
    ApiCommand(
        words="config set",
        asks="PATCH /config",
        about="Change a setting in the running server, until it ends: onelog config set"
        " --log-level debug.",
        options=(
            Option(field="log_level", choices=_LEVELS, about="How much the log says."),
            Option(
                field="ban_failures",
                kind="number",
                about="Failed logins that ban an address; 0: none is banned.",
            ),
            Option(field="ban_ms", flag="ban", kind="duration", about="How long a ban lasts: 1h."),
            Option(
                field="ban_delay_ms",
                flag="ban-delay",
                kind="duration",
                about="Delay of the answer to an address's first failed login: 200ms.",
            ),
        ),
        done="{key} is {value} until the server ends",
        example="--log-level info",
    ),
)

COMMANDS: Final[tuple[ApiCommand, ...]] = (
    *_HERE,
    *STORE_ROWS,
    *CLUSTER_ROWS,
    *_LOG,
    *PROTOCOL_ROWS,
    *_PEOPLE,
)
