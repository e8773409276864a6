"""What operators make and remove in the console: queues, retained messages, transactions."""

from __future__ import annotations

from urllib.parse import quote

import pika
from confluent_kafka import Producer
from playwright.sync_api import expect

from tests.console.scene import DEADLINE_S


def test_a_queue_is_declared_bound_and_let_go(scene, visit):
    page = visit(scene).go("queues")
    page.get_by_role("button", name="New queue").click()
    page.get_by_label("Name", exact=True).fill("bells")
    page.locator("dialog textarea").fill("x-message-ttl=60000")
    page.get_by_role("button", name="Declare").click()
    expect(page.get_by_role("table", name="Queues")).to_contain_text("bells")
    page = visit(scene).go("queues?tab=exchanges")
    page.get_by_role("button", name="New exchange").click()
    page.get_by_label("Name", exact=True).fill("sirens")
    page.get_by_role("button", name="Declare").click()
    expect(page.get_by_role("table", name="Exchanges")).to_contain_text("sirens")
    page = visit(scene).go("queues?tab=bindings")
    page.get_by_role("button", name="New binding").click()
    page.get_by_label("From exchange").fill("sirens")
    page.get_by_label("Routing key").fill("plant.#")
    page.get_by_label("Named").fill("bells")
    page.get_by_role("button", name="Bind", exact=True).click()
    row = page.get_by_role("table", name="Bindings").get_by_role("row").filter(has_text="sirens")
    row.get_by_role("button", name="Unbind…").click()
    page.locator("dialog button.danger").click()
    expect(page.locator(".toast")).to_contain_text("not bound any more")
    page = visit(scene).go("queues?tab=exchanges")
    table = page.get_by_role("table", name="Exchanges")
    row = table.get_by_role("row").filter(has_text="sirens")
    row.get_by_role("button", name="Delete…").click()
    page.locator("dialog button.danger").click()
    expect(page.locator(".toast")).to_contain_text("deleted")
    expect(table).not_to_contain_text("sirens")
    assert scene.ask("GET", "/amqp/queues?search=bells")["items"]
    scene.ask("DELETE", "/amqp/queues/%2F/bells")


def test_retained_messages_of_a_filter_are_cleared(scene, visit):
    for topic in ("cleared/1", "cleared/2"):
        scene.ask("POST", "/messages", {"topic": topic, "text": "x", "retain": True})
    page = visit(scene).go("sessions?tab=retained")
    page.get_by_label("Topic or filter").fill("cleared/#")
    page.get_by_role("button", name="Clear all of cleared/#…").click()
    page.locator("dialog button.danger").click()
    expect(page.locator(".toast")).to_contain_text("2 topics")
    assert scene.ask("GET", "/mqtt/retained?filter=cleared/%23")["items"] == []


def test_an_open_transaction_is_aborted(scene, visit):
    place = f"127.0.0.1:{scene.broker.ports['kafka']}"
    producer = Producer({"bootstrap.servers": place, "transactional.id": "console-pay"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce("paid", b"x")
    producer.flush(DEADLINE_S)
    page = visit(scene).go("groups?tab=transactions")
    table = page.get_by_role("table", name="Transactions")
    row = table.get_by_role("row").filter(has_text="console-pay")
    row.get_by_role("button", name="Abort…").click()
    page.locator("dialog button.danger").click()
    expect(page.locator(".toast")).to_contain_text("aborted")
    expect(table.get_by_role("button", name="Abort…")).to_have_count(0)


def test_dead_letters_of_a_queue_come_again(scene, visit):
    where = pika.ConnectionParameters("127.0.0.1", scene.broker.ports["amqp"])
    connection = pika.BlockingConnection(where)
    channel = connection.channel()
    buries = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    channel.queue_declare("graves", durable=True)
    channel.queue_declare("parcels", durable=True, arguments=buries)
    channel.basic_publish("", "parcels", b"x")
    got = next(channel.consume("parcels", inactivity_timeout=DEADLINE_S))[0]
    channel.basic_reject(got.delivery_tag, requeue=False)
    connection.close()
    path = "/amqp/queues?search=graves"
    (graves,) = scene.until(path, lambda found: found["items"][0]["ready"] == 1)["items"]
    page = visit(scene).go(f"cursors?name={quote(graves['cursor'], safe='')}")
    page.get_by_role("button", name="Redrive…").click()
    page.locator("dialog button.danger").click()
    expect(page.locator(".toast")).to_contain_text("1 message waits again, 0 are gone")
    scene.until(path, lambda found: found["items"][0]["ready"] == 0)
    scene.until("/amqp/queues?search=parcels", lambda found: found["items"][0]["ready"] == 1)
    for name in ("graves", "parcels"):
        scene.ask("DELETE", f"/amqp/queues/%2F/{name}")
