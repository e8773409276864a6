// Kafka's own tools on a cluster, behind lines of JSON: the calls of AdminClient that kafka-topics.sh,
// kafka-leader-election.sh, kafka-reassign-partitions.sh, kafka-configs.sh and kafka-cluster.sh make.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.PartitionReassignment;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class KafkaJavaCluster {
    static final ObjectMapper JSON = new ObjectMapper();
    final String address;
    final Admin admin;

    KafkaJavaCluster(String port) {
        address = "127.0.0.1:" + port;
        admin = Admin.create(Map.of("bootstrap.servers", address));
    }

    static List<Integer> ids(Collection<Node> nodes) {
        return nodes == null ? List.of() : nodes.stream().map(Node::id).toList();
    }

    static TopicPartition place(JsonNode asked) {
        return new TopicPartition(asked.get("topic").asText(), asked.get("partition").asInt());
    }

    Object cluster() throws Exception {
        DescribeClusterResult found = admin.describeCluster();
        Map<Integer, String> racks = new TreeMap<>();
        for (Node node : found.nodes().get()) racks.put(node.id(), String.valueOf(node.rack()));
        return Map.of("id", found.clusterId().get(), "controller", found.controller().get().id(), "racks", racks);
    }

    Object create(JsonNode asked) throws Exception {
        Map<String, String> configs = JSON.convertValue(asked.get("configs"), Map.class);
        NewTopic topic = new NewTopic(asked.get("topic").asText(), asked.get("partitions").asInt(), (short) asked.get("replicas").asInt());
        if (asked.hasNonNull("assigned")) {
            Map<Integer, List<Integer>> assigned = new LinkedHashMap<>();
            for (JsonNode row : asked.get("assigned")) assigned.put(assigned.size(), JSON.convertValue(row, List.class));
            topic = new NewTopic(topic.name(), assigned);
        }
        admin.createTopics(List.of(topic.configs(configs))).all().get();
        return null;
    }

    Object describe(JsonNode asked) throws Exception {
        String topic = asked.get("topic").asText();
        List<Map<String, Object>> rows = new ArrayList<>();
        for (TopicPartitionInfo row : admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions())
            rows.add(Map.of("leader", row.leader() == null ? -1 : row.leader().id(), "replicas", ids(row.replicas()),
                    "isr", ids(row.isr()), "elr", ids(row.elr())));
        return rows;
    }

    /** The errors of an election, by partition; an empty name for one that was held. */
    Object elect(JsonNode asked) throws Exception {
        Set<TopicPartition> places = asked.hasNonNull("topic") ? Set.of(place(asked)) : null;
        Map<String, String> found = new TreeMap<>();
        for (Map.Entry<TopicPartition, Optional<Throwable>> row :
                admin.electLeaders(ElectionType.valueOf(asked.get("kind").asText()), places).partitions().get().entrySet())
            found.put(row.getKey().toString(), row.getValue().map(error -> Errors.forException(error).name()).orElse(""));
        return found;
    }

    Object reassign(JsonNode asked) throws Exception {
        Optional<NewPartitionReassignment> target = asked.hasNonNull("to")
                ? Optional.of(new NewPartitionReassignment(JSON.convertValue(asked.get("to"), List.class))) : Optional.empty();
        admin.alterPartitionReassignments(Map.of(place(asked), target)).all().get();
        return null;
    }

    Object reassignments() throws Exception {
        Map<String, List<Integer>> found = new TreeMap<>();
        for (Map.Entry<TopicPartition, PartitionReassignment> row : admin.listPartitionReassignments().reassignments().get().entrySet())
            found.put(row.getKey().toString(), row.getValue().addingReplicas());
        return found;
    }

    Object configure(JsonNode asked) throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, asked.get("topic").asText());
        ConfigEntry entry = new ConfigEntry(asked.get("name").asText(), asked.get("value").asText());
        admin.incrementalAlterConfigs(Map.of(topic, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
        return null;
    }

    Object produce(JsonNode asked) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "acks", "all", "retries", asked.get("retries").asInt(),
                "enable.idempotence", false, "delivery.timeout.ms", 15000, "request.timeout.ms", 5000);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            return producer.send(new ProducerRecord<>(asked.get("topic").asText(), 0, null, new byte[8])).get().offset();
        }
    }

    Object answer(JsonNode asked) throws Exception {
        return switch (asked.get("do").asText()) {
            case "cluster" -> cluster();
            case "create" -> create(asked);
            case "describe" -> describe(asked);
            case "elect" -> elect(asked);
            case "reassign" -> reassign(asked);
            case "reassignments" -> reassignments();
            case "configure" -> configure(asked);
            case "produce" -> produce(asked);
            default -> throw new IllegalArgumentException("unknown: " + asked);
        };
    }

    public static void main(String[] arguments) throws Exception {
        KafkaJavaCluster client = new KafkaJavaCluster(arguments[0]);
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
