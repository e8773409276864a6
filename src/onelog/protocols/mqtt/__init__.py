"""MQTT 3.1, 3.1.1 and 5.0 as a view of the log.

Rooms: `packet_types`, `packets` and `properties` declare what is on the wire; `codec` (with one
`codec_*` module per packet family) turns bytes into packets and back; `state` says which packet may
come when; `reasons` and `errors` name what went wrong; `mapping` turns properties into records and
back.
"""
