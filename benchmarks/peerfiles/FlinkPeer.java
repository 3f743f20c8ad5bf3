import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;

/**
 * Word count and windows on Flink's local cluster at parallelism 1. Each line on standard input is a command, with tabs
 * between its words: {@code check|run words|windows INPUT [OUTPUT]}. Prints the seconds of each run; {@code check}
 * writes the results to a file and prints 0.
 */
public class FlinkPeer {
  public static void main(String[] arguments) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String[] words = line.split("\t");
      StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
      environment.getConfig().enableObjectReuse();
      DataStream<?> results = words[1].equals("words") ? words(environment, words[2]) : windows(environment, words[2]);
      double seconds = 0;
      if (words[0].equals("check")) {
        try (CloseableIterator<?> all = results.executeAndCollect();
            BufferedWriter out = Files.newBufferedWriter(Path.of(words[3]))) {
          while (all.hasNext()) {
            Object result = all.next();
            if (result instanceof Tuple2) {
              Tuple2<?, ?> pair = (Tuple2<?, ?>) result;
              out.write(pair.f0 + "\t" + pair.f1 + "\n");
            } else {
              out.write(result + "\n");
            }
          }
        }
      } else {
        discard(results);
        // From the start of the job in the local cluster that is made for it.
        seconds = environment.execute().getNetRuntime() / 1e3;
      }
      System.out.println(seconds);
      System.out.flush();
    }
  }

  private static <T> void discard(DataStream<T> results) {
    results.sinkTo(new DiscardingSink<T>());
  }

  @SuppressWarnings("deprecation")
  private static DataStream<String> lines(StreamExecutionEnvironment environment, String file) {
    return environment.readTextFile(file);
  }

  private static DataStream<Tuple2<String, Integer>> words(StreamExecutionEnvironment environment, String file) {
    return lines(environment, file)
        .flatMap(
            (String line, Collector<Tuple2<String, Integer>> out) -> {
              for (String word : line.split(" ")) {
                out.collect(Tuple2.of(word, 1));
              }
            })
        .returns(Types.TUPLE(Types.STRING, Types.INT))
        .keyBy(pair -> pair.f0)
        .reduce((a, b) -> Tuple2.of(a.f0, a.f1 + b.f1));
  }

  private static DataStream<Long> windows(StreamExecutionEnvironment environment, String file) {
    return lines(environment, file)
        .map(
            line -> {
              String[] fields = line.split(",");
              return Tuple3.of(Integer.valueOf(fields[0]), Integer.valueOf(fields[1]), Long.valueOf(fields[2]));
            })
        .returns(Types.TUPLE(Types.INT, Types.INT, Types.LONG))
        .assignTimestampsAndWatermarks(
            WatermarkStrategy.<Tuple3<Integer, Integer, Long>>forBoundedOutOfOrderness(Duration.ofSeconds(5))
                .withTimestampAssigner((event, time) -> event.f2))
        .keyBy(event -> event.f0)
        .window(TumblingEventTimeWindows.of(Duration.ofSeconds(10)))
        .aggregate(new Sum());
  }

  private static class Sum implements AggregateFunction<Tuple3<Integer, Integer, Long>, Long, Long> {
    @Override
    public Long createAccumulator() {
      return 0L;
    }

    @Override
    public Long add(Tuple3<Integer, Integer, Long> event, Long sum) {
      return sum + event.f1;
    }

    @Override
    public Long getResult(Long sum) {
      return sum;
    }

    @Override
    public Long merge(Long a, Long b) {
      return a + b;
    }
  }
}
