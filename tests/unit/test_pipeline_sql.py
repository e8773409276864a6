"""Are topics and tables found in SQL, and only where they stand for tables?"""

from __future__ import annotations

import pytest

from onelog.base.errors import ConfigError
from onelog.pipelines.sql import infer_ddl, split_calls


def test_each_call_becomes_a_view_with_its_arguments():
    text, calls = split_calls(
        "SELECT * FROM Topic('a/+/c', decode => 'json', from => 5, headers => true) t"
        " JOIN iceberg('n.t') USING (k) JOIN stream('orders', cold_reads => 'store')"
    )
    assert text == (
        "SELECT * FROM onelog_topic_0 t JOIN onelog_iceberg_1 USING (k) JOIN onelog_stream_2"
    )
    assert [(call.kind, call.name) for call in calls] == [
        ("topic", "a/+/c"),
        ("iceberg", "n.t"),
        ("stream", "orders"),
    ]
    assert calls[0].arguments == {"decode": "json", "from": "5", "headers": "true"}
    assert calls[2].arguments == {"cold_reads": "store"}


def test_what_only_looks_like_a_call_is_left_alone():
    query = """SELECT 'topic(''x'')', "delta('y')", `parquet('z')`, a.topic('b'),
        mytopic('c'), topic
        -- topic('d')
        /* iceberg('e') */ FROM t WHERE s = 'it\\'s topic(\\'f\\')'"""
    assert split_calls(query) == (query, [])


def test_a_name_may_have_quotes():
    _, (call,) = split_calls(r"FROM topic('it''s/\'one')")
    assert call.name == "it's/'one"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("FROM topic()", "write topic('name'"),
        ("FROM topic(x)", "write topic('name'"),
        ("FROM topic('a'", "write topic('name'"),
        ("FROM topic('a', 'b')", "write topic('name'"),
        ("FROM topic(decode => 'json')", "write topic('name'"),
        ("FROM topic('a', form => 'x')", "no argument form (did you mean from?)"),
        ("FROM delta('a', catalog => 'x')", "no argument catalog"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(query, told):
    with pytest.raises(ConfigError) as caught:
        split_calls(query)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        (['{"a":1,"b":"x"}'], "`a` BIGINT, `b` STRING"),
        (['{"a":1}', '{"a":2.5,"c":true}'], "`a` DOUBLE, `c` BOOLEAN"),
        (['{"a":null}', '{"a":1}'], "`a` BIGINT"),
        (['{"a":null}'], "`a` STRING"),
        (['{"a":1}', '{"a":"x"}'], "`a` STRING"),
        (['{"a":{"b":[1,2.0]}}', '{"a":{"c":[]}}'],
         "`a` STRUCT<`b`: ARRAY<DOUBLE>, `c`: ARRAY<STRING>>"),
        (["no", "[1]", '{"a`":true}'], "`a``` BOOLEAN"),
        (["no", "3", "{}"], None),
    ],
)  # fmt: skip
def test_the_columns_of_json_are_those_that_it_has(values, ddl):
    assert infer_ddl(values) == ddl
