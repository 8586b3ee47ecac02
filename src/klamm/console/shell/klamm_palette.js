// The palette (⌘K): finds topics, groups, brokers, pages and actions by the JSON API, and opens them.
const PAUSE_MS = 90;

export default {
  template: `
    <div v-if="isOpen" class="k-palette" role="dialog" aria-label="Search" @click.self="close">
      <div>
        <input ref="box" v-model="typed" type="text" placeholder="Topic, group, broker, page or action" aria-label="Search everything"
          spellcheck="false" autocomplete="off" role="combobox" aria-expanded="true" @keydown="key">
        <ul v-if="found.length" role="listbox">
          <li v-for="(one, index) in found" :key="one.url + one.kind" role="option" :class="{'k-here': index === at}" :aria-selected="index === at"
            @mousemove="at = index" @click="open(one)"><span class="k-kind">{{ one.kind }}</span><span class="k-name">{{ one.name }}</span></li>
        </ul>
        <div v-else-if="isDone" class="k-none">{{ problem || 'Nothing is called like this.' }}</div>
      </div>
    </div>
    <span v-else hidden></span>`,
  data() {
    return { isOpen: false, typed: "", found: [], at: 0, isDone: false, problem: "" };
  },
  watch: {
    typed() {
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.look(), PAUSE_MS);
    },
  },
  mounted() {
    this.show = () => {
      this.isOpen = true;
      this.typed = "";
      this.at = 0;
      this.look();
      Vue.nextTick(() => this.$refs.box.focus());
    };
    window.addEventListener("klamm-palette", this.show);
  },
  unmounted() {
    window.removeEventListener("klamm-palette", this.show);
  },
  methods: {
    async look() {
      const asked = this.typed;
      try {
        const answer = await fetch(`/api/v1/search?text=${encodeURIComponent(asked)}`);
        const found = await answer.json();
        if (asked !== this.typed) return; // a later one is on its way
        this.found = answer.ok ? found.found : [];
        this.problem = answer.ok ? "" : found.error;
      } catch {
        this.found = [];
        this.problem = "The console does not answer.";
      }
      this.at = 0;
      this.isDone = true;
    },
    close() {
      this.isOpen = false;
    },
    open(one) {
      this.close();
      klamm.go(one.url);
    },
    key(event) {
      if (event.key === "Escape") this.close();
      else if (event.key === "ArrowDown") this.at = Math.min(this.at + 1, this.found.length - 1);
      else if (event.key === "ArrowUp") this.at = Math.max(this.at - 1, 0);
      else if (event.key === "Enter" && this.found[this.at]) this.open(this.found[this.at]);
      else return;
      event.preventDefault();
    },
  },
};
