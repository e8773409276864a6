// A Kafka Streams application with a versioned store: what a key was at a time. Ends with its stdin.
// Run as a source file (java -cp jars file port application input output directory).

import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;

class KafkaStreamsVersions {
    static final String STORE = "versions";
    static final String QUESTION = "asof:";

    /** Keeps what comes, and answers what a key was at a time. */
    static class Versions implements Processor<String, String, String, String> {
        ProcessorContext<String, String> context;
        VersionedKeyValueStore<String, String> store;

        @Override
        public void init(ProcessorContext<String, String> given) {
            context = given;
            store = given.getStateStore(STORE);
        }

        @Override
        public void process(Record<String, String> record) {
            if (!record.value().startsWith(QUESTION)) {
                store.put(record.key(), record.value(), record.timestamp());
                return;
            }
            long time = Long.parseLong(record.value().substring(QUESTION.length()));
            VersionedRecord<String> found = store.get(record.key(), time);
            context.forward(record.withValue(found == null ? "none" : found.value()));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", "127.0.0.1:" + arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[4]);
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", 100);
        settings.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
                Stores.versionedKeyValueStoreBuilder(
                        Stores.persistentVersionedKeyValueStore(STORE, Duration.ofHours(1)),
                        Serdes.String(),
                        Serdes.String()));
        builder.<String, String>stream(arguments[2])
                .repartition(Repartitioned.as("again"))
                .process(Versions::new, STORE)
                .to(arguments[3]);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.start();
            while (System.in.read() >= 0) {}
            streams.close(Duration.ofSeconds(20));
        }
    }
}
