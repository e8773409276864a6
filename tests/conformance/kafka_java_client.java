// Apache Kafka's Java client behind lines of JSON: one line on stdin asks, one line on stdout answers.
// Run as a source file (java -cp jars file port): the same text with every version of the client.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class KafkaJavaClient {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration DEADLINE = Duration.ofSeconds(30);
    final String address;
    final Admin admin;
    final Map<String, Member> members = new HashMap<>();

    KafkaJavaClient(String port) {
        address = "127.0.0.1:" + port;
        admin = Admin.create(Map.of("bootstrap.servers", address));
    }

    static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", address, "linger.ms", 20));
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(String group, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", address, "auto.offset.reset", "earliest", "session.timeout.ms", 6000,
                "heartbeat.interval.ms", 300, "allow.auto.create.topics", false, "fetch.max.wait.ms", 50,
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"));
        if (group != null) settings.put("group.id", group);
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static ObjectNode row(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode row = JSON.createObjectNode();
        row.put("value", text(record.value())).put("key", text(record.key()));
        row.put("timestamp", record.timestamp()).put("offset", record.offset()).put("partition", record.partition());
        ArrayNode headers = row.putArray("headers");
        for (Header header : record.headers()) headers.addArray().add(header.key()).add(text(header.value()));
        return row;
    }

    Object produce(JsonNode asked) throws Exception {
        Map<String, Object> settings = Map.of("compression.type", asked.get("codec").asText(), "enable.idempotence", true);
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : asked.get("records")) {
                Long stamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
                ProducerRecord<byte[], byte[]> out = new ProducerRecord<>(
                        asked.get("topic").asText(), record.get("partition").asInt(), stamp,
                        bytes(record.get("key")), bytes(record.get("value")));
                for (JsonNode header : record.get("headers"))
                    out.headers().add(header.get(0).asText(), bytes(header.get(1)));
                sent.add(producer.send(out));
            }
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> future : sent) offsets.add(future.get().offset());
            return offsets;
        }
    }

    static Map<String, Integer> came(ObjectNode found) {
        Map<String, Integer> counts = new LinkedHashMap<>();
        found.fieldNames().forEachRemaining(topic -> counts.put(topic, found.get(topic).size()));
        return counts;
    }

    Object read(JsonNode asked) {
        String level = asked.get("committed").asBoolean() ? "read_committed" : "read_uncommitted";
        ObjectNode found = JSON.createObjectNode();
        List<TopicPartition> places = new ArrayList<>();
        asked.get("counts").fieldNames().forEachRemaining(topic -> {
            found.putArray(topic);
            places.add(new TopicPartition(topic, 0));
        });
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, Map.of("isolation.level", level))) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long deadline = System.nanoTime() + DEADLINE.toNanos();
            while (places.stream().anyMatch(place ->
                    found.get(place.topic()).size() < asked.get("counts").get(place.topic()).asInt())) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("not all records came: " + came(found));
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100)))
                    ((ArrayNode) found.get(record.topic())).add(row(record));
            }
        }
        return found;
    }

    static void end(KafkaProducer<byte[], byte[]> producer, JsonNode asked) {
        if (asked.get("commit").asBoolean()) producer.commitTransaction();
        else producer.abortTransaction();
    }

    Object transact(JsonNode asked) {
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("transactional.id", asked.get("name").asText()))) {
            producer.initTransactions();
            producer.beginTransaction();
            for (JsonNode value : asked.get("values"))
                producer.send(new ProducerRecord<>(asked.get("topic").asText(), 0, null, bytes(value)));
            producer.flush();
            end(producer, asked);
        }
        return null;
    }

    Object transform(JsonNode asked) {
        Map<String, Object> manual = Map.of("enable.auto.commit", false, "isolation.level", "read_committed");
        Map<String, Object> named = Map.of("transactional.id", asked.get("name").asText());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(asked.get("group").asText(), manual);
             KafkaProducer<byte[], byte[]> producer = producer(named)) {
            consumer.subscribe(List.of(asked.get("source").asText()));
            producer.initTransactions();
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            long deadline = System.nanoTime() + DEADLINE.toNanos();
            for (int left = asked.get("count").asInt(); left > 0; ) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("not all records came");
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    byte[] value = ("> " + new String(record.value(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    producer.send(new ProducerRecord<>(asked.get("target").asText(), 0, null, value));
                    offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    left--;
                }
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            end(producer, asked);
        }
        return null;
    }

    /** A member of a group: a thread that polls. */
    class Member extends Thread {
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<List<Object>> took = new ArrayList<>();
        volatile List<Integer> assigned = List.of();
        volatile boolean stopping;
        volatile RuntimeException failed;

        Member(String group, String topic) {
            consumer = consumer(group, Map.of("auto.commit.interval.ms", 100));
            consumer.subscribe(List.of(topic));
            start();
        }

        @Override
        public void run() {
            try (consumer) {
                while (!stopping) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50)))
                        synchronized (took) {
                            took.add(List.of(record.partition(), record.offset()));
                        }
                    assigned = consumer.assignment().stream().map(TopicPartition::partition).toList();
                }
            } catch (RuntimeException error) {
                failed = error;
            }
        }
    }

    Member member(JsonNode asked) {
        Member member = members.get(asked.get("member").asText());
        if (member.failed != null) throw member.failed;
        return member;
    }

    Object join(JsonNode asked) {
        members.put(asked.get("member").asText(), new Member(asked.get("group").asText(), asked.get("topic").asText()));
        return null;
    }

    Object took(JsonNode asked) {
        Member member = member(asked);
        synchronized (member.took) {
            return new ArrayList<>(member.took);
        }
    }

    Object leave(JsonNode asked) throws Exception {
        Member member = member(asked);
        member.stopping = true;
        member.join();
        return members.remove(asked.get("member").asText()).failed == null ? null : member(asked);
    }

    Object create(JsonNode asked) throws Exception {
        Map<String, String> configs = JSON.convertValue(asked.get("configs"), Map.class);
        NewTopic topic = new NewTopic(asked.get("topic").asText(), asked.get("partitions").asInt(), (short) -1);
        return admin.createTopics(List.of(topic.configs(configs))).all().get();
    }

    Object configs(JsonNode asked) throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, asked.get("topic").asText());
        Map<String, String> found = new LinkedHashMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(topic)).all().get().get(topic).entries())
            found.put(entry.name(), entry.value());
        return found;
    }

    /** An offset by the name of its kind; older clients do not have all of them. */
    Object offset(JsonNode asked) throws Exception {
        TopicPartition place = new TopicPartition(asked.get("topic").asText(), asked.get("partition").asInt());
        OffsetSpec kind = (OffsetSpec) OffsetSpec.class.getMethod(asked.get("kind").asText()).invoke(null);
        return admin.listOffsets(Map.of(place, kind)).partitionResult(place).get().offset();
    }

    Object configure(JsonNode asked) throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, asked.get("topic").asText());
        ConfigEntry entry = new ConfigEntry(asked.get("name").asText(), asked.get("value").asText());
        Collection<AlterConfigOp> changes = List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET));
        return admin.incrementalAlterConfigs(Map.of(topic, changes)).all().get();
    }

    Object answer(JsonNode asked) throws Exception {
        String topic = asked.path("topic").asText();
        return switch (asked.get("do").asText()) {
            case "produce" -> produce(asked);
            case "read" -> read(asked);
            case "transact" -> transact(asked);
            case "transform" -> transform(asked);
            case "join" -> join(asked);
            case "assigned" -> member(asked).assigned;
            case "took" -> took(asked);
            case "leave" -> leave(asked);
            case "create" -> create(asked);
            case "partitions" -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            case "configs" -> configs(asked);
            case "configure" -> configure(asked);
            case "offset" -> offset(asked);
            case "grow" -> admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(asked.get("partitions").asInt()))).all().get();
            case "delete" -> admin.deleteTopics(List.of(topic)).all().get();
            case "topics" -> admin.listTopics().names().get();
            default -> throw new IllegalArgumentException("unknown: " + asked);
        };
    }

    public static void main(String[] arguments) throws Exception {
        KafkaJavaClient client = new KafkaJavaClient(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("answer", JSON.valueToTree(client.answer(JSON.readTree(line))));
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.removeAll();
                answer.put("error", String.valueOf(cause)).put("code", Errors.forException(cause).code());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        client.admin.close(Duration.ofSeconds(5));
        System.exit(0);
    }
}
