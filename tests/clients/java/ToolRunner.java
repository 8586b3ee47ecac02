// Runs Kafka's own command-line tools one after the other in one JVM, because starting one for each costs seconds.
// Calls as lines of JSON on stdin, answers on stdout (see ../java_tools.py).

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

public class ToolRunner {
    static final ObjectMapper JSON = new ObjectMapper();

    /** Stands where the tool would have ended the process. Some tools catch it, so the status is kept apart. */
    static class Exited extends RuntimeException {
        Exited() {
            super("the tool ended", null, false, false);
        }
    }

    static Integer firstStatus;
    static final List<Runnable> SHUTDOWN_HOOKS = new ArrayList<>();

    static void exited(int status) {
        firstStatus = firstStatus == null ? Integer.valueOf(status) : firstStatus;
        throw new Exited();
    }

    /** What a tool prints. Tools may keep the stream they found first, so there is one for all of them. */
    static class Capture extends OutputStream {
        private ByteArrayOutputStream current = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int data) {
            current.write(data);
        }

        synchronized String take() {
            String text = current.toString(StandardCharsets.UTF_8);
            current = new ByteArrayOutputStream();
            return text;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Capture printed = new Capture();
        Capture complained = new Capture();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((status, message) -> exited(status));
        Exit.setHaltProcedure((status, message) -> exited(status));
        Exit.setShutdownHookAdder((name, hook) -> SHUTDOWN_HOOKS.add(hook));
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            JsonNode call = JSON.readTree(line);
            System.setIn(new ByteArrayInputStream(call.get("input").asText().getBytes(StandardCharsets.UTF_8)));
            int status = run(call);
            Map<String, Object> result =
                Map.of("status", status, "printed", printed.take(), "complained", complained.take());
            answers.println(JSON.writeValueAsString(Map.of("id", call.get("id").asInt(), "result", result)));
        }
        Runtime.getRuntime().halt(0);
    }

    static int run(JsonNode call) throws Exception {
        List<String> words = new ArrayList<>();
        call.get("arguments").forEach(word -> words.add(word.asText()));
        firstStatus = null;
        SHUTDOWN_HOOKS.clear();
        try {
            Class.forName(call.get("tool").asText())
                .getMethod("main", String[].class)
                .invoke(null, (Object) words.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                thrown.getCause().printStackTrace();
                return 1;
            }
        }
        // Some tools do their last work where the JVM would end: they close, and print what they saw.
        SHUTDOWN_HOOKS.forEach(Runnable::run);
        return firstStatus == null ? 0 : firstStatus;
    }
}
