import java.util.Arrays;
import java.util.HexFormat;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/**
 * Where Apache Kafka's producer puts keys.
 *
 * <p>java -cp 'JARS/*' PartitionsForKeys.java > partitions_for_keys.json
 */
public class PartitionsForKeys {
    private static final int[] COUNTS = {1, 2, 7, 1000};

    private static String line(byte[] key) {
        int[] partitions =
            Arrays.stream(COUNTS).map(n -> BuiltInPartitioner.partitionForKey(key, n)).toArray();
        return String.format(
            "  [\"%s\", %d, %s]",
            HexFormat.of().formatHex(key), Utils.murmur2(key), Arrays.toString(partitions));
    }

    public static void main(String[] arguments) {
        Random random = new Random(5);
        StringBuilder lines = new StringBuilder();
        for (int size = 0; size < 70; size++) {
            byte[] key = new byte[size];
            Arrays.fill(key, (byte) 0xff);
            lines.append(line(key)).append(",\n");
            random.nextBytes(key);
            lines.append(line(key)).append(",\n");
        }
        System.out.println("[\n" + lines.substring(0, lines.length() - 2) + "\n]");
    }
}
