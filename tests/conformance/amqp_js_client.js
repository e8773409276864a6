// amqplib does what services do with it; each step is a line of JSON with what was seen.
const amqp = require(process.argv[2]);
const url = process.argv[3];
const say = (step, seen) => process.stdout.write(JSON.stringify({ step, seen }) + "\n");
const name = (word) => `${word}-${Math.random().toString(16).slice(2)}`;
const later = () => { let done; const promise = new Promise((take) => { done = take; }); return { promise, done }; };

async function main() {
  const connection = await amqp.connect(`${url}?heartbeat=5&channelMax=100&frameMax=8192`);
  const channel = await connection.createConfirmChannel();
  const queue = (await channel.assertQueue("", { exclusive: true, maxPriority: 5 })).queue;
  const exchange = name("x");
  await channel.assertExchange(exchange, "topic", { autoDelete: true, durable: false });
  await channel.bindQueue(queue, exchange, "a.#");

  const headers = { text: "t", number: 5, big: 2 ** 40, nothing: null, list: [1, "two"], table: { deep: true } };
  channel.publish(exchange, "a.b", Buffer.alloc(20000, "x"), { headers, persistent: true, messageId: "m1", priority: 3 });
  await channel.waitForConfirms();
  const got = await channel.get(queue);
  say("get", [got.content.length, got.fields.routingKey, got.properties.messageId, got.properties.headers, got.properties.deliveryMode]);
  channel.nack(got);
  const again = await channel.get(queue);
  say("nack", again.fields.redelivered);
  channel.ack(again);
  say("empty", await channel.get(queue));

  const returned = later();
  channel.once("return", (message) => returned.done(message.fields.replyText));
  channel.publish(exchange, "nowhere", Buffer.from("1"), { mandatory: true });
  await channel.waitForConfirms();
  say("return", await returned.promise);

  await channel.prefetch(2);
  const texts = [], cancelled = later(), all = later();
  const { consumerTag } = await channel.consume(queue, (message) => {
    if (message === null) { cancelled.done(true); return; }
    texts.push(message.content.toString());
    channel.ack(message);
    if (texts.length === 50) all.done();
  });
  for (let number = 0; number < 50; number += 1) channel.sendToQueue(queue, Buffer.from(String(number)));
  await channel.waitForConfirms();
  await all.promise;
  say("consume", texts);
  await channel.cancel(consumerTag);
  await channel.consume(queue, (message) => { if (message === null) cancelled.done(true); });
  await channel.recover();
  await channel.purgeQueue(queue);
  await channel.deleteQueue(queue);
  say("cancel", await cancelled.promise);

  const other = await connection.createChannel();
  const failed = later();
  other.on("error", (error) => failed.done(error.code));
  await other.checkQueue(name("missing")).catch(() => {});
  say("check", await failed.promise);

  const asker = await connection.createChannel();
  const work = (await asker.assertQueue("", { exclusive: true })).queue;
  const answer = later();
  await asker.consume("amq.rabbitmq.reply-to", (message) => answer.done(message.content.toString()), { noAck: true });
  await asker.consume(work, (message) => asker.sendToQueue(message.properties.replyTo, Buffer.from("answer")), { noAck: true });
  asker.sendToQueue(work, Buffer.from("question"), { replyTo: "amq.rabbitmq.reply-to" });
  say("reply", await answer.promise);

  await connection.close();
  say("closed", true);
}

main().catch((error) => { say("failed", String(error.stack)); process.exit(1); });
