// Lines over time, drawn by ECharts, which is loaded when the first chart is shown. The colours are those of the theme.
const HUES = { produce: "--produce", consume: "--consume", lag: "--lag", muted: "--muted", broken: "--broken",
  one: "--produce", two: "--consume", three: "--lag", four: "--fourth", five: "--fifth" };

const LEAST_SHOWN_MS = 30000;

const number = (value) => {
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toPrecision(3) + "G";
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toPrecision(2);
};

const bytes = (value) => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
};

export default {
  template: `
    <div class="k-chart" :style="{height: height + 'px'}">
      <div ref="canvas"></div>
      <div v-if="isEmpty" class="k-chart-empty">{{ empty }}</div>
    </div>`,
  props: {
    series: { type: Array, default: () => [] },
    unit: { type: String, default: "" },
    height: { type: Number, default: 200 },
    rangeMs: { type: Number, default: 900000 },
    nowMs: { type: Number, default: 0 },
    empty: { type: String, default: "The chart begins to fill with the next looks at the cluster." },
  },
  computed: {
    isEmpty() {
      return !this.series.some((one) => one.points.filter((point) => point[1] !== null).length > 1);
    },
  },
  watch: {
    series() {
      this.draw();
    },
  },
  async mounted() {
    const { echarts } = await import("nicegui-echart");
    if (!this.$refs.canvas) return; // the page is another one already
    this.chart = echarts.init(this.$refs.canvas, null, { renderer: "canvas" });
    this.chart.group = "klamm";
    echarts.connect("klamm");
    this.resizing = new ResizeObserver(() => this.chart.resize());
    this.resizing.observe(this.$el);
    this.redraw = () => this.draw();
    window.addEventListener("klamm-theme", this.redraw);
    this.draw();
  },
  unmounted() {
    if (!this.chart) return;
    this.resizing.disconnect();
    window.removeEventListener("klamm-theme", this.redraw);
    this.chart.dispose();
  },
  methods: {
    text(value) {
      if (value === null || value === undefined) return "–";
      return this.unit === "B" ? bytes(value) : number(value) + this.unit;
    },
    draw() {
      if (!this.chart) return;
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      const isNarrow = this.$el.clientWidth < 480;
      const firstMs = Math.min(...this.series.flatMap((one) => one.points.filter((point) => point[1] !== null).map((point) => point[0])));
      const shownMs = Math.min(this.rangeMs, Math.max(this.nowMs - firstMs, LEAST_SHOWN_MS) || this.rangeMs);
      const rightPx = isNarrow ? 64 : 104;
      this.chart.setOption(
        {
          animation: false,
          textStyle: { fontFamily: "system-ui, sans-serif", color: colour("--muted") },
          grid: { left: 48, right: rightPx, top: 12, bottom: 24 },
          xAxis: {
            type: "time",
            min: this.nowMs - shownMs,
            max: this.nowMs,
            axisLine: { show: false },
            axisTick: { show: false },
            splitLine: { show: false },
            splitNumber: isNarrow ? 3 : 5,
            axisLabel: {
              color: colour("--muted"),
              fontSize: 11,
              hideOverlap: true,
              formatter: (value) =>
                this.nowMs - value < shownMs / 40 ? "now" : new Date(value).toLocaleTimeString([], shownMs > 10 * LEAST_SHOWN_MS ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } : { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }),
            },
          },
          yAxis: {
            type: "value",
            min: 0,
            splitNumber: 3,
            axisLine: { show: false },
            axisTick: { show: false },
            splitLine: { lineStyle: { color: colour("--line"), width: 1 } },
            axisLabel: { color: colour("--muted"), fontSize: 11, formatter: (value) => (this.unit === "B" ? bytes(value) : number(value)) },
          },
          tooltip: {
            trigger: "axis",
            renderMode: "richText",
            confine: true,
            backgroundColor: colour("--surface"),
            borderColor: colour("--line"),
            textStyle: { color: colour("--text"), fontSize: 12 },
            axisPointer: { lineStyle: { color: colour("--muted"), type: "solid", width: 1 } },
            formatter: (points) =>
              [new Date(points[0].value[0]).toLocaleTimeString([], { hourCycle: "h23" })].concat(points.map((one) => `${one.seriesName}  ${this.text(one.value[1])}`)).join("\n"),
          },
          series: this.series.map((one) => {
            const hue = colour(HUES[one.hue] || "--produce");
            return {
              name: one.name,
              type: "line",
              data: one.points,
              showSymbol: false,
              connectNulls: false,
              lineStyle: { width: 1.8, color: hue },
              itemStyle: { color: hue },
              areaStyle: one.area ? { color: hue, opacity: 0.14 } : undefined,
              emphasis: { disabled: true },
              endLabel: {
                show: true,
                formatter: (point) => `${one.name}${isNarrow ? "" : " " + this.text(point.value[1])}`,
                color: hue,
                fontSize: 11,
                distance: 6,
                width: rightPx - 8,
                overflow: "truncate",
              },
              labelLayout: { moveOverlap: "shiftY" },
            };
          }),
        },
        { notMerge: true },
      );
    },
  },
};
