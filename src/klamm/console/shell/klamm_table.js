// A table whose rows come from the server, page by page. Text is escaped by Vue; nothing here is HTML.
//
// A cell is null, a text or a number, or an object: {t, sub, href, mono, tone, title} for text, {tags: [{t, tone}]},
// {spark: [numbers], hue}, {bar: share, t, tone}.
const SEARCH_PAUSE_MS = 160;

export default {
  template: `
    <div class="k-table">
      <div v-if="search !== null || filters.length || pages > 1 || note" class="k-tools">
        <div v-if="search !== null" class="k-search">
          <input type="search" :value="typed" :placeholder="placeholder" :aria-label="placeholder" spellcheck="false" autocomplete="off"
            @input="type($event.target.value)" @keydown.down.prevent="focusRow(0)" @keydown.esc="type('')">
        </div>
        <button v-for="one in filters" :key="one.key" class="k-chip" type="button" :aria-pressed="String(one.on)" :title="one.title"
          @click="$emit('filter', one.key)">{{ one.label }}</button>
        <span v-if="note" class="k-muted">{{ note }}</span>
        <span class="k-space"></span>
        <span v-if="total" class="k-pager">
          <span>{{ first }}–{{ last }} of {{ total.toLocaleString('en') }}</span>
          <template v-if="pages > 1">
            <button type="button" aria-label="Page before" :disabled="page <= 1" @click="$emit('page', page - 1)">‹</button>
            <button type="button" aria-label="Next page" :disabled="page >= pages" @click="$emit('page', page + 1)">›</button>
          </template>
        </span>
      </div>
      <div v-if="rows.length" class="k-scroll">
        <table>
          <thead><tr>
            <th v-for="c in columns" :key="c.key" :class="classOf(c)" :aria-sort="sortOf(c)" scope="col">
              <button v-if="c.sort" type="button" @click="$emit('sort', c.key)">{{ c.label }}{{ mark(c) }}</button>
              <template v-else>{{ c.label }}</template>
            </th>
            <th v-if="hasActions" class="k-acts"></th>
          </tr></thead>
          <tbody ref="body">
            <tr v-for="(row, index) in rows" :key="row.id" :class="{'k-opens': row.href}" :tabindex="index === at ? 0 : -1"
              @click="open(row, $event)" @focus="at = index" @keydown="key(row, index, $event)">
              <td v-for="c in columns" :key="c.key" :class="classOf(c)" :title="titleOf(row.cells[c.key])">
                <span v-if="isNone(row.cells[c.key])" class="k-none">–</span>
                <template v-else-if="typeof row.cells[c.key] !== 'object'">{{ row.cells[c.key] }}</template>
                <svg v-else-if="row.cells[c.key].spark" class="k-spark" :class="'k-' + row.cells[c.key].hue" viewBox="0 0 88 22" aria-hidden="true">
                  <path :d="line(row.cells[c.key].spark)" /></svg>
                <template v-else-if="row.cells[c.key].tags"><span v-for="tag in row.cells[c.key].tags" :key="tag.t" class="k-tag"
                  :class="tag.tone && 'k-' + tag.tone">{{ tag.t }}</span></template>
                <span v-else-if="row.cells[c.key].bar !== undefined" class="k-bar" :class="row.cells[c.key].tone && 'k-' + row.cells[c.key].tone"
                  :style="{'--share': row.cells[c.key].bar * 100 + '%'}"><i></i><span>{{ row.cells[c.key].t }}</span></span>
                <template v-else><a v-if="row.cells[c.key].href" :href="row.cells[c.key].href" tabindex="-1"
                  :class="look(row.cells[c.key])">{{ row.cells[c.key].t }}</a><span v-else :class="look(row.cells[c.key])">{{ row.cells[c.key].t }}</span><span
                  v-if="row.cells[c.key].sub" class="k-sub">{{ row.cells[c.key].sub }}</span></template>
              </td>
              <td v-if="hasActions" class="k-acts"><button v-for="a in row.actions || []" :key="a.key" type="button" tabindex="-1"
                @click.stop="$emit('act', {row: row.id, action: a.key})">{{ a.label }}</button></td>
            </tr>
          </tbody>
        </table>
      </div>
      <div v-else class="k-empty">
        <template v-if="typed"><h3>Nothing matches “{{ typed }}”</h3><p>Search looks at names only.</p></template>
        <template v-else><h3>{{ empty.title }}</h3><p>{{ empty.text }}</p><code v-if="empty.command" :data-copy="empty.command"
          title="Copy">{{ empty.command }}</code></template>
      </div>
    </div>`,
  props: {
    columns: { type: Array, default: () => [] },
    rows: { type: Array, default: () => [] },
    sort: { type: String, default: "" },
    page: { type: Number, default: 1 },
    pages: { type: Number, default: 1 },
    perPage: { type: Number, default: 50 },
    total: { type: Number, default: 0 },
    search: { type: String, default: null },
    placeholder: { type: String, default: "Search" },
    filters: { type: Array, default: () => [] },
    note: { type: String, default: "" },
    empty: { type: Object, default: () => ({}) },
  },
  emits: ["sort", "page", "search", "filter", "act"],
  data() {
    return { at: 0, typed: this.search || "" };
  },
  watch: {
    rows(now) {
      if (this.at >= now.length) this.at = 0;
    },
  },
  computed: {
    first() {
      return ((this.page - 1) * this.perPage + 1).toLocaleString("en");
    },
    last() {
      return ((this.page - 1) * this.perPage + this.rows.length).toLocaleString("en");
    },
    hasActions() {
      return this.rows.some((row) => row.actions && row.actions.length);
    },
  },
  methods: {
    type(text) {
      this.typed = text;
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.$emit("search", text.trim()), SEARCH_PAUSE_MS);
    },
    classOf(column) {
      return { "k-right": column.right, "k-wide-only": column.hide === "narrow", "k-not-on-phone": column.hide === "phone" || column.hide === "narrow" };
    },
    sortOf(column) {
      if (this.sort === column.key) return "ascending";
      return this.sort === "-" + column.key ? "descending" : undefined;
    },
    mark(column) {
      return { ascending: " ↑", descending: " ↓" }[this.sortOf(column)] || "";
    },
    isNone(cell) {
      return cell === null || cell === undefined || cell === 0 || cell === "";
    },
    look(cell) {
      return [cell.mono && "k-mono", cell.tone && `k-${cell.tone}-text`];
    },
    titleOf(cell) {
      if (cell === null || cell === undefined) return undefined;
      return typeof cell === "object" ? cell.title || cell.t : String(cell);
    },
    line(values) {
      const known = values.filter((value) => value !== null);
      const top = Math.max(...known, 1e-9);
      let path = "";
      let isUp = false;
      values.forEach((value, index) => {
        if (value === null) {
          isUp = false;
          return;
        }
        const x = 88 - (values.length - 1 - index) * (88 / 29);
        path += `${isUp ? "L" : "M"}${x.toFixed(1)} ${(20 - (value / top) * 18).toFixed(1)}`;
        isUp = true;
      });
      return path;
    },
    open(row, event) {
      if (!row.href || event.target.closest("a, button") || String(window.getSelection())) return;
      if (event.metaKey || event.ctrlKey) window.open(row.href, "_blank");
      else klamm.go(row.href);
    },
    focusRow(index) {
      const rows = this.$refs.body ? this.$refs.body.children : [];
      const row = rows[Math.max(0, Math.min(index, rows.length - 1))];
      if (row) row.focus();
    },
    key(row, index, event) {
      if (event.target.tagName !== "TR" || event.metaKey || event.ctrlKey || event.altKey) return;
      const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 };
      if (event.key in moves) this.focusRow(index + moves[event.key]);
      else if (event.key === "Home") this.focusRow(0);
      else if (event.key === "End") this.focusRow(this.rows.length);
      else if (event.key === "PageDown" && this.page < this.pages) this.$emit("page", this.page + 1);
      else if (event.key === "PageUp" && this.page > 1) this.$emit("page", this.page - 1);
      else if (event.key === "Enter" && row.href) klamm.go(row.href);
      else return;
      event.preventDefault();
    },
  },
};
