import java.io.FileReader;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;

/**
 * Counts the words in a topic with exactly_once_v2, until the process is terminated.
 *
 * Arguments: a properties file, the input topic, the output topic, and a directory for the state.
 */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            properties.load(file);
        }
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 3);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        properties.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
            BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put("auto.offset.reset", "earliest");

        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[1])
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[2], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
