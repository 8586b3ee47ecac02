// The messages of a topic: a list, the record beside it, search, live tail, export, producing.
//
// Everything comes from the JSON API. Text is escaped by Vue; nothing here is HTML. The URL says what is shown.
const ROWS = 50;
const MOST_ROWS = 1000; // a list that grows by "more" or live
const FILTER_PAUSE_MS = 450;
const RANGES = [
  ["start:end", "All records"],
  ["@-15m:end", "Last 15 minutes"],
  ["@-1h:end", "Last hour"],
  ["@-24h:end", "Last 24 hours"],
  ["-100:end", "Last 100 of each partition"],
];
const number = (value) => value.toLocaleString("en");
const several = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const size = (bytes) => {
  const units = ["B", "KB", "MB", "GB"];
  let unit = 0;
  while (bytes >= 1000 && unit < 3) (bytes /= 1000), (unit += 1);
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
};
const two = (value) => String(value).padStart(2, "0");
const time = (ms) => {
  if (ms < 0) return "no time";
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
};
const idOf = (row) => `${row.partition}.${row.offset}`;

async function ask(url, options) {
  const response = await fetch(url, options);
  const found = await response.json().catch(() => ({ error: `the console answered ${response.status}` }));
  if (!response.ok) throw new Error(found.error || `the console answered ${response.status}`);
  return found;
}

// The events of a stream, one by one, until it ends or is stopped.
async function* events(url, signal) {
  const response = await fetch(url, { signal });
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error || `the console answered ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    const pieces = (rest + value).split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      const found = JSON.parse(piece.slice("data: ".length));
      if (found.error) throw new Error(found.error);
      yield found;
    }
  }
}

const Tree = {
  name: "message-tree",
  template: `
    <details v-if="node.children.length" class="m-node" :open="depth < 3 && node.children.length < 60">
      <summary><span v-if="node.name !== ''" class="m-name">{{ node.name }}</span><span class="m-muted">{{ node.text }}</span></summary>
      <div class="m-children"><message-tree v-for="(child, index) in node.children" :key="index" :node="child" :depth="depth + 1"
        @filter="$emit('filter', $event)" /></div>
    </details>
    <div v-else class="m-leaf"><span v-if="node.name !== ''" class="m-name">{{ node.name }}</span><span
      :class="'m-' + node.kind">{{ node.text }}</span><button v-if="node.path && ['text', 'number', 'word'].includes(node.kind) && node.text.length < 200"
      class="m-mini" type="button" title="Only messages with this value" @click="$emit('filter', condition)">filter</button></div>`,
  props: { node: Object, depth: { type: Number, default: 0 } },
  emits: ["filter"],
  computed: {
    condition() {
      const path = /^(key|value|header|partition|offset|not|and|or)\b/.test(this.node.path) ? "." + this.node.path : this.node.path;
      return `${path} = ${this.node.text}`;
    },
  },
};

const Content = {
  components: { "message-tree": Tree },
  template: `
    <div class="m-content">
      <p v-if="part.error" class="m-why k-look-text">{{ part.error }}</p>
      <p v-for="note in part.notes" :key="note" class="m-why k-muted">{{ note }}</p>
      <p v-if="part.kind === 'null'" class="m-why"><span class="k-tag">null</span> {{ isKey ? 'The record has no key.' : 'A tombstone: in a compacted topic it deletes the key.' }}</p>
      <p v-else-if="part.kind === 'empty'" class="m-why"><span class="k-tag">empty</span> It has no bytes.</p>
      <div v-else-if="how === 'tree' && part.tree" class="m-tree"><message-tree :node="part.tree" @filter="$emit('filter', $event)" /></div>
      <pre v-else-if="how !== 'hex' && part.kind !== 'binary'" class="m-raw">{{ part.text }}</pre>
      <pre v-else class="m-hex"><template v-for="row in part.hex" :key="row.at"><span class="m-muted">{{ row.at.toString(16).padStart(8, '0') }}</span>  {{ row.hex.padEnd(47) }}  <span class="m-text">{{ row.text }}</span>
</template></pre>
    </div>`,
  props: { part: Object, how: String, isKey: Boolean },
  emits: ["filter"],
};

export default {
  components: { "message-content": Content },
  template: `
    <div class="m-page" :class="{'m-open': record || recordProblem}" @keydown="keys">
      <div class="m-bar" role="search">
        <div class="k-choice" role="group" aria-label="Order">
          <button type="button" :aria-pressed="String(!live && order === 'newest')" @click="choose({order: 'newest', live: false})">Newest</button>
          <button type="button" :aria-pressed="String(!live && order === 'oldest')" @click="choose({order: 'oldest', live: false})">Oldest</button>
          <button type="button" :aria-pressed="String(live)" @click="choose({live: true})">Live</button>
        </div>
        <template v-if="!live">
          <select class="k-input" aria-label="Where" :value="rangeKind" @change="chooseRange($event.target.value)">
            <option v-for="one in ranges" :key="one[0]" :value="one[0]">{{ one[1] }}</option>
            <option value="offset">From an offset…</option><option value="time">From a time…</option><option value="custom">Another range…</option>
          </select>
          <input v-if="rangeKind === 'offset'" class="k-input m-short" type="number" min="0" aria-label="Offset" placeholder="offset" v-model="offsetTyped"
            @change="offsetTyped !== '' && choose({range: offsetTyped + ':end', order: 'oldest'})">
          <input v-if="rangeKind === 'time'" class="k-input" type="datetime-local" step="1" aria-label="Time" v-model="timeTyped"
            @change="timeTyped && choose({range: '@' + Date.parse(timeTyped) + ':end', order: 'oldest'})">
          <input v-if="rangeKind === 'custom'" class="k-input m-medium k-mono" aria-label="Range" placeholder="5:9, -100:end, @-2h:@-1h" v-model="rangeTyped" spellcheck="false"
            @change="choose({range: rangeTyped.trim() || 'start:end'})">
        </template>
        <select v-if="partitions > 1 && partitions <= 200" class="k-input" aria-label="Partition" :value="chosenPartitions" @change="choose({chosenPartitions: $event.target.value})">
          <option value="">All partitions</option>
          <option v-if="chosenPartitions.includes(',')" :value="chosenPartitions">Partitions {{ chosenPartitions }}</option>
          <option v-for="n in partitions" :key="n" :value="String(n - 1)">Partition {{ n - 1 }}</option>
        </select>
        <input v-else-if="partitions > 1" class="k-input m-short" aria-label="Partition" placeholder="partitions" :value="chosenPartitions"
          @change="choose({chosenPartitions: $event.target.value.replace(/ /g, '')})">
        <select class="k-input" aria-label="Value as" :value="format" @change="chooseFormat($event.target.value)">
          <option v-for="one in [['auto', 'Value: auto'], ['json', 'Value: JSON'], ['text', 'Value: text'], ['hex', 'Value: hex'], ['avro', 'Value: Avro'], ['protobuf', 'Value: Protobuf']]"
            :key="one[0]" :value="one[0]">{{ one[1] }}</option>
        </select>
        <span class="k-space"></span>
        <div class="m-menu" v-for="menu in menus" :key="menu.name"><button class="k-button" type="button" :aria-expanded="String(opened === menu.name)" @click.stop="opened = opened === menu.name ? '' : menu.name">{{ menu.name }} ▾</button>
          <div v-if="opened === menu.name" class="m-items"><template v-for="one in menu.items" :key="one[0]"><a v-if="one[2]" :href="one[2]" download @click="opened = ''">{{ one[0] }}</a>
            <button v-else type="button" @click="opened = ''; one[1]()">{{ one[0] }}</button></template></div></div>
        <button v-if="mayProduce" class="k-button k-primary" type="button" @click="producing = newRecord()">Produce</button>
      </div>
      <div class="m-filter k-search">
        <input type="search" v-model="filterTyped" class="k-mono" spellcheck="false" autocomplete="off" aria-label="Filter messages"
          placeholder='Filter: a text, key = 42, header trace, customer.city = "Bern" and amount > 100' @input="typeFilter" @keydown.enter="applyFilter"
          @keydown.down.prevent="focusRow(0)">
        <button class="k-button k-plain" type="button" aria-label="Help on filters" @click="helps = !helps">?</button>
      </div>
      <div v-if="helps" class="m-help"><div v-for="one in help" :key="one[0]"><code>{{ one[0] }}</code><span>{{ one[1] }}</span></div></div>
      <p v-if="problem" class="k-notice k-broken" role="alert">{{ problem }}</p>
      <div class="m-progress" role="status">
        <template v-if="live"><span class="m-dot" :class="{'m-still': !running}"></span><span>{{ running ? 'Live' : 'Paused' }} · {{ several(rows.length, 'message') }}<template v-if="skipped"> · {{ number(skipped) }} skipped, as they came faster than a page can show</template></span>
          <button class="k-chip" type="button" @click="running ? stop() : goOn()">{{ running ? 'Pause' : 'Go on' }}</button></template>
        <template v-else-if="filter && total"><span>Scanned {{ number(scanned) }} of {{ number(total) }} · {{ number(rows.length) }} found{{ running ? '' : isEnd ? '' : ' · stopped' }}</span>
          <span class="m-meter"><i :style="{width: 100 * scanned / total + '%'}"></i></span>
          <button v-if="running" class="k-chip" type="button" @click="stop">Stop</button>
          <button v-else-if="!isEnd" class="k-chip" type="button" @click="goOn">Go on</button></template>
        <template v-else-if="running && !rows.length"><span>Reading…</span></template>
        <template v-else-if="rows.length"><span>{{ several(rows.length, 'message') }}{{ isEnd && !at ? '' : ' of ' + number(total) }}<template v-if="at"> · from a later place </template></span>
          <button v-if="at" class="k-chip" type="button" @click="choose({at: ''})">{{ order === 'newest' ? 'To the newest' : 'To the oldest' }}</button></template>
        <span v-if="unanswered.length" class="k-look-text">Partition {{ unanswered.slice(0, 5).join(', ') }}{{ unanswered.length > 5 ? ' and others' : '' }} did not answer: their messages are missing.</span>
      </div>
      <div class="m-split">
        <div class="m-list k-table">
          <div v-if="rows.length" class="k-scroll"><table>
            <thead><tr><th class="k-right">Offset</th><th class="m-time">Time</th><th class="m-key">Key</th><th>Value</th></tr></thead>
            <tbody ref="body"><tr v-for="(row, index) in rows" :key="idOf(row)" class="k-opens" :class="{'m-chosen': idOf(row) === recordId}" :tabindex="index === focused ? 0 : -1"
              @focus="focused = index" @click="clicked(row, index)">
              <td class="k-right k-mono"><span v-if="partitions > 1" class="m-muted" :title="'partition ' + row.partition">{{ row.partition }} · </span>{{ number(row.offset) }}</td>
              <td class="m-time" :title="time(row.timestamp)">{{ recordId ? time(row.timestamp).slice(11) || time(row.timestamp) : time(row.timestamp) }}</td>
              <td class="m-key k-mono" :title="row.key ? row.key.text : 'null'"><span v-if="row.key === null" class="k-none">–</span><template v-else>{{ row.key.text }}</template></td>
              <td class="m-value k-mono"><span v-if="row.reason" class="k-tag k-broken">{{ row.reason }}</span><span v-if="row.value === null" class="k-tag">null</span><template v-else><span
                v-if="!row.value.size" class="k-tag">empty</span><span :class="{'m-muted': row.value.is_binary}">{{ row.value.text }}</span></template></td>
            </tr></tbody></table>
            <div v-if="!live && !running && !isEnd && rows.length" class="m-more"><button class="k-button" type="button" :disabled="rows.length >= 1000" @click="goOn">{{ filter ? 'Search on' : order === 'newest' ? 'Older' : 'Newer' }}</button></div>
          </div>
          <div v-else-if="!running || live" class="k-empty">
            <template v-if="live"><h3>Waiting for new messages</h3><p>They come here as they are written.</p></template>
            <template v-else-if="problem"><h3>Nothing to show</h3></template>
            <template v-else-if="nearest && (nearest.before || nearest.after)"><h3>No messages in this range</h3>
              <p>{{ [nearest.before && number(nearest.before) + ' before it', nearest.after && number(nearest.after) + ' after it'].filter(Boolean).join(', ') }}{{ nearest.newest ? '; the newest is from ' + time(nearest.newest[2]) : '' }}.</p>
              <p class="m-buttons"><button v-if="nearest.before" class="k-button" type="button" @click="choose({range: 'start:end', order: 'newest', at: nearest.before_at})">Those before</button>
              <button v-if="nearest.after" class="k-button" type="button" @click="choose({range: 'start:end', order: 'oldest', at: nearest.after_at})">Those after</button></p></template>
            <template v-else-if="filter && total"><h3>Nothing found{{ isEnd ? '' : ' yet' }}</h3><p>{{ number(scanned) }} of {{ number(total) }} were looked at.</p></template>
            <template v-else><h3>No messages yet</h3><p>Send one with Produce, or from a shell:</p><code :data-copy="command" title="Copy">{{ command }}</code></template>
          </div>
        </div>
        <aside v-if="record || recordProblem" class="m-record" aria-label="Message" ref="record" tabindex="-1">
          <div class="m-record-head"><strong>{{ recordId.split('.').length > 1 && partitions > 1 ? 'Partition ' + recordId.split('.')[0] + ' · ' : '' }}Offset {{ number(+recordId.split('.')[1]) }}</strong>
            <span class="k-space"></span><button class="k-button k-plain" type="button" aria-label="Message above" @click="move(-1)">↑</button><button class="k-button k-plain" type="button" aria-label="Message below" @click="move(1)">↓</button>
            <button class="k-button k-plain" type="button" aria-label="Close" @click="close">✕</button></div>
          <p v-if="recordProblem" class="m-why k-broken-text">{{ recordProblem }}</p>
          <template v-if="record">
            <p class="m-facts">{{ time(record.timestamp) }}{{ record.timestamp_type === 'LogAppendTime' ? ' (append time)' : '' }} · key {{ size(record.key.size) }} · value {{ size(record.value.size) }} · leader epoch {{ record.leader_epoch }}</p>
            <div v-if="record.refusal" class="m-refusal"><b>{{ record.refusal.rule }}</b><span>{{ record.refusal.error }}</span>
              <span class="m-muted">refused by {{ record.refusal.pipeline }}<template v-if="record.refusal.source">, in {{ record.refusal.source }}</template></span>
              <a v-if="record.source_url" :href="record.source_url">{{ record.refusal.topic }}, partition {{ record.refusal.partition }}, offset {{ number(record.refusal.offset) }}</a></div>
            <div class="m-actions">
              <button v-if="record.key_filter" class="k-chip" type="button" @click="setFilter(record.key_filter)">This key only</button>
              <button class="k-chip" type="button" @click="choose({range: record.offset + ':end', chosenPartitions: String(record.partition), order: 'oldest', filter: '', at: '', live: false})">From here on</button>
              <button v-for="one in snippets" :key="one[0]" class="k-chip" type="button" @click="copySnippet(one[0], recordQuery)">Copy as {{ one[1] }}</button>
              <a class="k-chip m-link" :href="api + '/' + record.partition + '/' + record.offset + '/value'" download>Download value</a>
            </div>
            <div class="m-how k-choice" role="group" aria-label="View"><button v-for="one in ways" :key="one[0]" type="button" :aria-pressed="String(how === one[0])" @click="how = one[0]">{{ one[1] }}</button></div>
            <template v-if="how === 'headers'"><table class="m-headers"><tbody><tr v-for="(one, index) in record.headers" :key="index"><th>{{ one.name }}</th>
              <td class="k-mono"><span v-if="one.text === null" class="k-tag">null</span><template v-else>{{ one.text }}</template></td></tr></tbody></table>
              <p v-if="!record.headers.length" class="m-why k-muted">The message has no headers.</p><p v-if="record.more_headers" class="m-why k-muted">{{ number(record.more_headers) }} more are not shown.</p></template>
            <template v-else><h3 class="m-part">Key <span class="k-muted">{{ record.key.kind }}</span></h3><message-content :part="record.key" :how="how" is-key @filter="setFilter" />
              <h3 class="m-part">Value <span class="k-muted">{{ record.value.kind }}</span><span class="k-space"></span><button v-if="record.value.text" class="m-mini" type="button" @click="copy(record.value.text)">copy</button></h3>
              <message-content :part="record.value" :how="how" @filter="setFilter" /></template>
          </template>
        </aside>
      </div>
      <div v-if="producing" class="m-veil" @click.self="producing = null" @keydown.esc.stop="producing = null"><form class="k-dialog m-dialog" role="dialog" aria-label="Produce a message" @submit.prevent="produce">
        <h2>Produce to {{ topic }}</h2>
        <div class="k-field"><label>Key <select v-model="producing.key_encoding" aria-label="Key as"><option v-for="one in encodings" :key="one" :value="one">{{ one }}</option></select></label>
          <input v-if="producing.key_encoding !== 'null'" class="k-input k-mono" v-model="producing.key" aria-label="Key" spellcheck="false"></div>
        <div class="k-field"><label>Value <select v-model="producing.value_encoding" aria-label="Value encoding"><option v-for="one in encodings" :key="one" :value="one">{{ one === 'null' ? 'null (tombstone)' : one }}</option></select></label>
          <textarea v-if="producing.value_encoding !== 'null'" class="k-input k-mono m-area" v-model="producing.value" aria-label="Value" rows="8" spellcheck="false"></textarea></div>
        <div class="k-field"><label>Headers, one a line: name=value</label><textarea class="k-input k-mono m-area" v-model="producing.headers" aria-label="Headers" rows="2" spellcheck="false"></textarea></div>
        <div class="k-field"><label>Partition</label><input class="k-input m-short" type="number" min="0" v-model="producing.partition" aria-label="To partition" placeholder="by key"></div>
        <p v-if="producing.problem" class="k-complaint" role="alert">{{ producing.problem }}</p>
        <p v-if="producing.sent" class="k-good-text" role="status">{{ producing.sent }}</p>
        <div class="k-actions"><button class="k-button" type="button" @click="producing = null">Close</button><button class="k-button k-primary" type="submit" :disabled="producing.busy">Send</button></div>
      </form></div>
      <div v-if="giving" class="m-veil" @click.self="giving = null" @keydown.esc.stop="giving = null"><form class="k-dialog m-dialog" role="dialog" aria-label="Give a schema" @submit.prevent="give">
        <h2>{{ giving.kind === 'avro' ? 'The Avro schema of the values' : 'The Protobuf message of the values' }}</h2>
        <template v-if="giving.kind === 'avro'"><div class="k-field"><label>The text of an .avsc file</label><textarea class="k-input k-mono m-area" v-model="giving.avro" aria-label="Schema" rows="10" spellcheck="false"></textarea></div>
          <input type="file" accept=".avsc,.json" aria-label="Schema file" @change="readText"></template>
        <template v-else><p class="k-muted">A descriptor set: <code>protoc --include_imports -o orders.desc orders.proto</code></p><input type="file" aria-label="Descriptor set" @change="readDescriptors">
          <div v-if="giving.messages.length" class="k-field"><label>Message</label><select class="k-input" v-model="giving.message" aria-label="Message name"><option v-for="one in giving.messages" :key="one" :value="one">{{ one }}</option></select></div></template>
        <p class="k-muted m-why">Values framed by a schema registry (a zero byte and the schema's id) are recognised.</p>
        <p v-if="giving.problem" class="k-complaint" role="alert">{{ giving.problem }}</p>
        <div class="k-actions"><button class="k-button" type="button" @click="giving = null">Close</button><button v-if="giving.kind === 'protobuf'" class="k-button" type="button" @click="giving = null; choose({format: 'protobuf', schema: ''})">Without a schema</button>
          <button class="k-button k-primary" type="submit" :disabled="giving.kind === 'avro' ? !giving.avro.trim() : !giving.message">Use it</button></div>
      </form></div>
    </div>`,
  props: {
    topic: String,
    api: String,
    page: String,
    partitions: { type: Number, default: 1 },
    mayProduce: Boolean,
    given: { type: Object, default: () => ({}) },
  },
  data() {
    const given = this.given;
    const range = given.range || "start:end";
    return {
      range,
      rangeKind: this.kindOf(range),
      rangeTyped: range,
      offsetTyped: /^\d+:end$/.test(range) ? range.split(":")[0] : "",
      timeTyped: "",
      chosenPartitions: given.partitions || "",
      order: given.order === "oldest" ? "oldest" : "newest",
      filter: given.filter || "",
      filterTyped: given.filter || "",
      at: given.at || "",
      format: given.format || "auto",
      schema: given.schema || "",
      committed: given.committed || "",
      live: given.live === "1",
      recordId: given.record || "",
      rows: [],
      next: "",
      passed: 0,
      scanned: 0, // grows within a round of a search, too
      total: 0,
      skipped: 0,
      isEnd: false,
      running: false,
      unanswered: [],
      nearest: null,
      problem: "",
      record: null,
      recordProblem: "",
      how: "tree",
      focused: 0,
      helps: false,
      opened: "",
      producing: null,
      giving: null,
      ranges: RANGES,
      snippets: [["cli", "CLI"], ["python", "Python"], ["pyspark", "PySpark"]],
      ways: [["tree", "Tree"], ["raw", "Raw"], ["hex", "Hex"], ["headers", "Headers"]],
      encodings: ["text", "json", "base64", "hex", "null"],
      help: [
        ["timeout", "the text is in the key, the value or a header"],
        ['"out of stock"', "a text with spaces"],
        ["key = 42   value ~ refused", "the key is 42; the value has this in it"],
        ["header trace   header trace = 7", "there is such a header; with this value"],
        ['customer.city = "Bern"', "a field of a value that is JSON; also != < <= > >= ~"],
        ["items[*].price > 10", "any element of a list"],
        ["partition = 3   offset >= 7", "where the message lies"],
        ["a b   a or b   not a   (a or b) c", "both; one of them; not"],
      ],
    };
  },
  computed: {
    query() {
      const parts = { range: this.range === "start:end" ? "" : this.range, partitions: this.chosenPartitions, order: this.order === "newest" ? "" : this.order, filter: this.filter, format: this.format === "auto" ? "" : this.format, schema: this.schema, committed: this.committed };
      return Object.fromEntries(Object.entries(parts).filter(([, value]) => value));
    },
    recordQuery() {
      const [partition, offset] = this.recordId.split(".").map(Number);
      return { partitions: partition, range: `${offset}:${offset + 1}` };
    },
    menus() {
      const url = (kind) => `${this.api}/export.${kind}?${new URLSearchParams(this.query)}`;
      return [
        { name: "Copy as", items: this.snippets.map(([key, name]) => [name, () => this.copySnippet(key, this.query)]) },
        { name: "Export", items: [["JSON lines", null, url("jsonl")], ["CSV", null, url("csv")]] },
      ];
    },
    command() {
      return `echo hello | klamm topic produce ${/^[\w.-]+$/.test(this.topic) ? this.topic : "'" + this.topic + "'"}`;
    },
  },
  mounted() {
    this.shut = () => (this.opened = "");
    document.addEventListener("click", this.shut);
    this.load();
    if (this.recordId) this.open();
  },
  unmounted() {
    document.removeEventListener("click", this.shut);
    this.stop();
    this.stopRecord?.abort();
    clearTimeout(this.pause);
  },
  methods: {
    number,
    several,
    size,
    time,
    idOf,
    copy(text) {
      klamm.copy(text);
    },
    kindOf(range) {
      if (RANGES.some(([key]) => key === range)) return range;
      return /^\d+:end$/.test(range) ? "offset" : /^@\d+:end$/.test(range) ? "time" : "custom";
    },

    // ---- what is shown, and its URL

    choose(changes) {
      if (!("at" in changes)) changes.at = "";
      Object.assign(this, changes);
      if ("range" in changes) {
        this.rangeTyped = this.range;
        this.rangeKind = this.kindOf(this.range);
        if (this.rangeKind === "offset") this.offsetTyped = this.range.split(":")[0];
      }
      if ("filter" in changes) this.filterTyped = this.filter;
      this.load();
    },
    chooseRange(kind) {
      this.rangeKind = kind;
      if (RANGES.some(([key]) => key === kind)) this.choose({ range: kind });
    },
    chooseFormat(format) {
      if (format === "avro" || format === "protobuf") {
        this.giving = { kind: format, avro: "", messages: [], message: "", descriptors: "", problem: "" };
        return;
      }
      this.choose({ format, schema: "" });
      if (this.recordId) this.open();
    },
    typeFilter() {
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.applyFilter(), FILTER_PAUSE_MS);
    },
    applyFilter() {
      clearTimeout(this.pause);
      if (this.filterTyped.trim() !== this.filter) this.choose({ filter: this.filterTyped.trim() });
    },
    setFilter(text) {
      this.choose({ filter: text });
    },
    showUrl() {
      const query = new URLSearchParams(this.query);
      if (this.at) query.set("at", this.at);
      if (this.live) query.set("live", "1");
      if (this.recordId) query.set("record", this.recordId);
      const text = query.toString();
      const path = this.page + (text ? "?" + text : "");
      history.replaceState({ page: path }, "", path);
    },

    // ---- the list

    async load() {
      this.stop();
      Object.assign(this, { rows: [], passed: 0, scanned: 0, total: 0, skipped: 0, isEnd: false, nearest: null, problem: "", unanswered: [], next: this.at, focused: 0 });
      this.showUrl();
      await this.goOn();
    },
    async goOn() {
      const query = new URLSearchParams({ ...this.query, limit: ROWS });
      if (this.next) query.set("at", this.next);
      const stop = new AbortController();
      this.stopList = stop;
      this.running = true;
      this.problem = "";
      this.passedBefore = this.passed;
      try {
        for await (const step of events(`${this.api}/${this.live ? "tail" : "search"}?${query}`, stop.signal)) {
          if (stop.signal.aborted) return;
          this.take(step);
        }
      } catch (error) {
        if (!stop.signal.aborted) this.problem = error.message;
      }
      if (this.stopList === stop) this.running = false;
    },
    take(step) {
      this.next = step.next;
      if (this.live) {
        this.skipped += step.skipped;
        if (step.rows.length) this.rows = [...step.rows.reverse(), ...this.rows].slice(0, 500);
        return;
      }
      this.scanned = Math.min(step.total, Math.max(step.passed, this.passedBefore + step.scanned));
      Object.assign(this, { passed: step.passed, total: step.total, isEnd: step.is_end, unanswered: step.unanswered });
      if (step.nearest) this.nearest = step.nearest;
      if (step.rows.length) this.rows.push(...step.rows.slice(0, MOST_ROWS - this.rows.length));
    },
    stop() {
      this.running = false;
      this.stopList?.abort();
      this.stopList = null;
    },

    // ---- one record

    clicked(row, index) {
      if (String(window.getSelection())) return;
      this.focused = index;
      this.recordId = idOf(row);
      this.open();
    },
    async open() {
      this.stopRecord?.abort();
      const stop = (this.stopRecord = new AbortController());
      this.showUrl();
      const query = new URLSearchParams({ format: this.format, schema: this.schema });
      const [partition, offset] = this.recordId.split(".");
      try {
        const found = await ask(`${this.api}/${encodeURIComponent(partition)}/${encodeURIComponent(offset)}?${query}`, { signal: stop.signal });
        Object.assign(this, { record: found, recordProblem: "" });
      } catch (error) {
        if (!stop.signal.aborted) Object.assign(this, { record: null, recordProblem: error.message });
      }
    },
    close() {
      Object.assign(this, { record: null, recordProblem: "", recordId: "" });
      this.showUrl();
      this.focusRow(this.focused);
    },
    move(step) {
      const here = this.rows.findIndex((row) => idOf(row) === this.recordId);
      const next = this.rows[here + step];
      if (!next) return;
      this.focusRow(here + step);
      this.recordId = idOf(next);
      this.open();
    },
    focusRow(index) {
      const rows = this.$refs.body ? this.$refs.body.children : [];
      rows[Math.max(0, Math.min(index, rows.length - 1))]?.focus();
    },
    keys(event) {
      if (event.key === "Escape" && this.recordId && !event.target.closest("input, textarea, select")) return this.close();
      if (event.target.tagName !== "TR" || event.metaKey || event.ctrlKey || event.altKey) return;
      const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 };
      if (event.key in moves) {
        this.focusRow(this.focused + moves[event.key]);
        if (this.recordId) {
          this.recordId = idOf(this.rows[this.focused]);
          this.open();
        }
      } else if (event.key === " " || event.key === "Enter") {
        const id = idOf(this.rows[this.focused]);
        if (event.key === " " && id === this.recordId) this.close();
        else {
          this.recordId = id;
          this.open();
        }
      } else if (event.key === "Home") this.focusRow(0);
      else if (event.key === "End") this.focusRow(this.rows.length);
      else return;
      event.preventDefault();
    },

    // ---- copying, producing, schemas

    async copySnippet(kind, query) {
      try {
        klamm.copy((await ask(`${this.api}/snippets?${new URLSearchParams(query)}`))[kind]);
      } catch (error) {
        klamm.say(error.message);
      }
    },
    newRecord() {
      return { key: "", key_encoding: "text", value: "", value_encoding: "text", headers: "", partition: "", problem: "", sent: "", busy: false };
    },
    async produce() {
      const record = this.producing;
      Object.assign(record, { problem: "", sent: "", busy: true });
      const headers = record.headers.split("\n").filter((line) => line.trim()).map((line) => ({ name: line.split("=")[0].trim(), value: line.slice(line.indexOf("=") + 1) }));
      if (record.headers.split("\n").some((line) => line.trim() && !line.includes("="))) {
        Object.assign(record, { problem: "A header has no =: give each as name=value.", busy: false });
        return;
      }
      const isKeyless = record.key_encoding === "text" && record.key === "";
      const body = { value: record.value, value_encoding: record.value_encoding, key: record.key, key_encoding: isKeyless ? "null" : record.key_encoding, headers, partition: record.partition === "" ? null : Number(record.partition) };
      try {
        const sent = await ask(this.api, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
        record.sent = `Sent to partition ${sent.partition}, offset ${number(sent.offset)}.`;
        if (!this.live && !this.filter) this.load();
      } catch (error) {
        record.problem = error.message;
      }
      record.busy = false;
    },
    async readText(event) {
      this.giving.avro = await event.target.files[0].text();
    },
    async readDescriptors(event) {
      const bytes = new Uint8Array(await event.target.files[0].arrayBuffer());
      let text = "";
      for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
      this.giving.descriptors = btoa(text);
      await this.tryToGive({ protobuf: this.giving.descriptors }, (found) => {
        this.giving.messages = found.messages;
        this.giving.message = found.messages[0];
      });
    },
    async give() {
      const giving = this.giving;
      const body = giving.kind === "avro" ? { avro: giving.avro } : { protobuf: giving.descriptors, message: giving.message };
      await this.tryToGive(body, (found) => {
        this.giving = null;
        this.choose({ format: giving.kind, schema: found.schema.id });
        if (this.recordId) this.open();
      });
    },
    async tryToGive(body, use) {
      this.giving.problem = "";
      try {
        use(await ask("/api/v1/schemas", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));
      } catch (error) {
        this.giving.problem = error.message;
      }
    },
  },
};
