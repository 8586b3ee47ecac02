// A graph of what flows, left to right. The server places nodes on a grid of layers and rows; edges are as thick as
// their rate. On a phone the same is a list. Text is escaped by Vue; nothing here is HTML.
const WIDTH = 168;
const HEIGHT = 48;
const GAP_X = 60;
const GAP_Y = 16;
const THINNEST = 1.25;
const THICKEST = 9;

export default {
  template: `
    <div class="k-graph">
      <div class="k-graph-scroll">
        <div class="k-graph-plane" :style="{width: planeWidth + 'px', height: planeHeight + 'px'}">
          <svg :width="planeWidth" :height="planeHeight" aria-hidden="true">
            <path v-for="one in drawn" :key="one.key" :d="one.path" :stroke-width="one.width" :class="one.classes" />
            <text v-for="one in drawn.filter((each) => each.text)" :key="'t' + one.key" :x="one.x" :y="one.y" :class="one.classes">{{ one.text }}</text>
          </svg>
          <component v-for="node in nodes" :key="node.id" :is="node.href ? 'a' : 'div'" :href="node.href || undefined"
            class="k-node" :class="['k-node-' + node.kind, node.tone && 'k-' + node.tone]" :title="node.name"
            :style="{left: left(node) + 'px', top: top(node) + 'px'}">
            <b>{{ node.name }}</b><span>{{ node.note }}</span>
          </component>
        </div>
      </div>
      <ul class="k-flows">
        <li v-for="node in nodes.filter((each) => each.kind === 'pipeline')" :key="node.id">
          <a :href="node.href" :class="['k-flow-name', node.tone && 'k-' + node.tone]"><b>{{ node.name }}</b><span>{{ node.note }}</span></a>
          <p v-for="one in ends(node)" :key="one.key" :class="one.tone && 'k-' + one.tone + '-text'"><i>{{ one.word }}</i>
            <a v-if="one.node.href" :href="one.node.href">{{ one.node.name }}</a><span v-else>{{ one.node.name }}</span><i v-if="one.node.kind !== 'topic'" class="k-flow-kind">{{ one.node.note }}</i><em>{{ one.text }}</em></p>
        </li>
      </ul>
    </div>`,
  props: {
    nodes: { type: Array, default: () => [] },
    edges: { type: Array, default: () => [] },
    layers: { type: Number, default: 0 },
    rows: { type: Number, default: 0 },
  },
  computed: {
    planeWidth() {
      return Math.max(0, this.layers * (WIDTH + GAP_X) - GAP_X);
    },
    planeHeight() {
      return Math.max(0, this.rows * (HEIGHT + GAP_Y) - GAP_Y);
    },
    byId() {
      return Object.fromEntries(this.nodes.map((node) => [node.id, node]));
    },
    drawn() {
      const most = Math.max(...this.edges.map((edge) => edge.per_s || 0), 1);
      return this.edges.map((edge) => {
        const from = this.byId[edge.source];
        const to = this.byId[edge.target];
        const x1 = this.left(from) + WIDTH;
        const y1 = this.top(from) + HEIGHT / 2;
        const x2 = this.left(to);
        const y2 = this.top(to) + HEIGHT / 2;
        const bend = Math.max(GAP_X / 2, (x2 - x1) / 2);
        return {
          key: edge.source + "→" + edge.target,
          path: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
          width: (THINNEST + (THICKEST - THINNEST) * Math.sqrt((edge.per_s || 0) / most)).toFixed(2),
          classes: [edge.tone && "k-" + edge.tone, edge.per_s ? "" : "k-idle"],
          text: this.rate(edge),
          x: x2 - GAP_X / 2,
          y: y2 - (y2 > y1 ? 4 : 8) + (Math.abs(y2 - y1) < 1 ? 0 : (y1 - y2) * 0.12),
        };
      });
    },
  },
  methods: {
    left(node) {
      return node.layer * (WIDTH + GAP_X);
    },
    top(node) {
      return node.row * (HEIGHT + GAP_Y);
    },
    rate(edge) {
      if (!edge.per_s) return "";
      return (edge.per_s < 10 ? edge.per_s.toFixed(1) : Math.round(edge.per_s).toLocaleString("en")) + "/s";
    },
    ends(node) {
      const into = this.edges.filter((edge) => edge.target === node.id).map((edge) => ({ edge, node: this.byId[edge.source], word: "reads" }));
      const out = this.edges.filter((edge) => edge.source === node.id).map((edge) => ({ edge, node: this.byId[edge.target], word: edge.tone === "broken" ? "refuses to" : "writes" }));
      return [...into, ...out].map((one) => ({ ...one, key: one.word + one.node.id, text: this.rate(one.edge), tone: one.edge.tone }));
    },
  },
};
