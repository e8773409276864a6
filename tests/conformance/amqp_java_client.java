// RabbitMQ's Java client does what services do with it; each line on stdout is a step and what was seen.
// Run as a source file (java -cp jars file url).

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.ShutdownSignalException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

class AmqpJavaClient {
    static void say(String step, Object seen) {
        System.out.println(step + "\t" + seen);
    }

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        factory.setAutomaticRecoveryEnabled(true);
        factory.setNetworkRecoveryInterval(100);
        factory.setRequestedHeartbeat(5);
        try (Connection connection = factory.newConnection("java")) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            String exchange = "x-" + UUID.randomUUID();
            channel.exchangeDeclare(exchange, "headers", false, true, Map.of());
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, exchange, "", Map.of("x-match", "all", "kind", "a"));

            Map<String, Object> headers = new HashMap<>();
            headers.put("kind", "a");
            headers.put("long", 5L);
            headers.put("time", new Date(1_700_000_000_000L));
            headers.put("list", Arrays.asList(1, "two"));
            headers.put("none", null);
            AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder()
                .headers(headers).deliveryMode(2).messageId("m1").build();
            channel.basicPublish(exchange, "", properties, new byte[300_000]);
            channel.waitForConfirmsOrDie(10_000);
            GetResponse got = channel.basicGet(queue, false);
            Map<String, Object> seen = got.getProps().getHeaders();
            say("get", got.getBody().length + " " + seen.get("long").getClass().getSimpleName() + " "
                + ((Date) seen.get("time")).getTime() + " " + seen.get("list") + " " + seen.containsKey("none"));
            channel.basicReject(got.getEnvelope().getDeliveryTag(), true);
            say("redelivered", channel.basicGet(queue, true).getEnvelope().isRedeliver());

            CompletableFuture<String> returned = new CompletableFuture<>();
            channel.addReturnListener((code, text, from, key, props, body) -> returned.complete(code + " " + text));
            channel.basicPublish("", "nowhere-" + UUID.randomUUID(), true, null, new byte[0]);
            say("return", returned.get(10, TimeUnit.SECONDS));

            List<String> texts = Collections.synchronizedList(new ArrayList<>());
            CompletableFuture<Boolean> all = new CompletableFuture<>(), cancelled = new CompletableFuture<>();
            channel.basicQos(3);
            channel.basicConsume(queue, false, new DefaultConsumer(channel) {
                @Override public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties props, byte[] body)
                        throws java.io.IOException {
                    texts.add(new String(body));
                    getChannel().basicAck(envelope.getDeliveryTag(), false);
                    if (texts.size() == 20) all.complete(true);
                }
                @Override public void handleCancel(String tag) { cancelled.complete(true); }
            });
            for (int number = 0; number < 20; number += 1) {
                channel.basicPublish("", queue, null, String.valueOf(number).getBytes());
            }
            channel.waitForConfirmsOrDie(10_000);
            all.get(10, TimeUnit.SECONDS);
            say("consume", texts);
            Channel other = connection.createChannel();
            other.queueDelete(queue);
            say("cancel", cancelled.get(10, TimeUnit.SECONDS));

            try {
                other.queueDeclarePassive("missing-" + UUID.randomUUID());
            } catch (java.io.IOException error) {
                say("passive", ((AMQP.Channel.Close) ((ShutdownSignalException) error.getCause()).getReason()).getReplyCode());
            }
            Channel tx = connection.createChannel();
            tx.txSelect();
            String target = tx.queueDeclare().getQueue();
            tx.basicPublish("", target, null, "1".getBytes());
            tx.txRollback();
            tx.basicPublish("", target, null, "2".getBytes());
            tx.txCommit();
            say("tx", new String(tx.basicGet(target, true).getBody()) + " " + (tx.basicGet(target, true) == null));
        }
        say("closed", true);
    }
}
