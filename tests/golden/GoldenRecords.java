// Writes topics with Apache Kafka's producer, reads them with its consumer and prints each record:
//
//   topic, isolation level, offset, timestamp, timestamp type, key, value, (header key, value)*
//
// The fields are separated by tabs. Bytes are in base64, and "-" is null. `capture.py` runs this.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class GoldenRecords {
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    static final long START_MS = 1_700_000_000_000L;
    static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        for (String codec : CODECS) {
            create(codec, Map.of());
            try (var producer = producer(codec, null)) {
                write(producer, codec, 0, 40);
                write(producer, codec, 40, 60);
            }
            print(codec);
        }
        create("log-append-time", Map.of("message.timestamp.type", "LogAppendTime"));
        try (var producer = producer("none", null)) {
            write(producer, "log-append-time", 0, 10);
        }
        print("log-append-time");
        transactions("transactions");
        print("transactions");
        compacted("compacted");
        print("compacted");
    }

    static void transactions(String topic) throws Exception {
        create(topic, Map.of());
        try (var plain = producer("none", null);
                var first = producer("lz4", "first");
                var second = producer("none", "second")) {
            first.initTransactions();
            second.initTransactions();
            first.beginTransaction();
            write(first, topic, 0, 5);
            second.beginTransaction();
            write(second, topic, 5, 10);
            write(plain, topic, 10, 12);
            first.abortTransaction();
            second.commitTransaction();
            first.beginTransaction();
            write(first, topic, 12, 15);
            second.beginTransaction();
            write(second, topic, 15, 20);
            first.commitTransaction();
            second.abortTransaction();
            write(plain, topic, 20, 22);
        }
    }

    // Writes a few keys many times, in segments that are closed quickly, so that compaction leaves
    // gaps between offsets.
    static void compacted(String topic) throws Exception {
        create(topic, Map.of("cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.0001",
                "segment.ms", "200", "max.compaction.lag.ms", "500"));
        try (var producer = producer("none", null)) {
            for (int round = 0; round < 4; round++) {
                for (int i = 0; i < 10; i++) {
                    byte[] key = ("key " + (i % (3 + round))).getBytes();
                    byte[] value = ("round " + round + ", " + i).getBytes();
                    producer.send(new ProducerRecord<>(topic, 0, START_MS + round * 10_000 + i, key, value));
                }
                producer.flush();
                Thread.sleep(500);
            }
            long end = System.currentTimeMillis() + 90_000;
            while (read(topic, "read_uncommitted").size() > 20) {
                if (System.currentTimeMillis() > end) throw new IllegalStateException("not cleaned");
                Thread.sleep(1000);
            }
        }
    }

    static void create(String topic, Map<String, String> configs) throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1).configs(configs))).all().get();
        }
    }

    static KafkaProducer<byte[], byte[]> producer(String codec, String transactionalId) {
        Map<String, Object> configs = new HashMap<>(Map.of("bootstrap.servers", bootstrap,
                "compression.type", codec, "linger.ms", "1000"));
        if (transactionalId != null) configs.put("transactional.id", transactionalId);
        return new KafkaProducer<>(configs, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void write(KafkaProducer<byte[], byte[]> producer, String topic, int first, int end) {
        for (int i = first; i < end; i++) {
            byte[] key = i % 3 == 0 ? null : i % 3 == 1 ? new byte[0] : ("key " + i).getBytes();
            byte[] value = i % 7 == 5 ? null : new byte[i * i % 150];
            if (value != null) Arrays.fill(value, (byte) i);
            long timestamp = START_MS + (i % 2 == 0 ? i * 1000L : -i);
            var record = new ProducerRecord<>(topic, 0, timestamp, key, value);
            for (int header = 0; header < i % 4; header++)
                record.headers().add(header == 2 ? "same" : "ключ " + header % 2,
                        header == 1 ? null : ("header " + i).getBytes(StandardCharsets.UTF_8));
            if (i % 4 == 3) record.headers().add("same", new byte[0]);
            producer.send(record);
        }
        producer.flush();
    }

    static List<ConsumerRecord<byte[], byte[]>> read(String topic, String isolation) {
        Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap, "isolation.level", isolation);
        var partition = new TopicPartition(topic, 0);
        List<ConsumerRecord<byte[], byte[]>> found = new java.util.ArrayList<>();
        try (var consumer = new KafkaConsumer<>(configs, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end)
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        }
        return found;
    }

    // The coordinator acknowledges the end of a transaction before it writes the markers.
    static void waitForMarkers(String topic) throws Exception {
        var partition = new TopicPartition(topic, 0);
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            long[] ends = {0, 1};
            while (ends[0] != ends[1]) {
                Thread.sleep(100);
                for (var isolation : IsolationLevel.values())
                    ends[isolation.ordinal()] = admin.listOffsets(
                            Map.of(partition, OffsetSpec.latest()), new ListOffsetsOptions(isolation))
                            .partitionResult(partition).get().offset();
            }
        }
    }

    static void print(String topic) throws Exception {
        waitForMarkers(topic);
        for (String isolation : List.of("read_committed", "read_uncommitted"))
            for (var record : read(topic, isolation)) {
                var line = new StringBuilder(String.join("\t", topic, isolation, "" + record.offset(),
                        "" + record.timestamp(), "" + record.timestampType().id,
                        text(record.key()), text(record.value())));
                for (Header header : record.headers())
                    line.append("\t").append(text(header.key().getBytes(StandardCharsets.UTF_8)))
                            .append("\t").append(text(header.value()));
                System.out.println(line);
            }
    }

    static String text(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }
}
