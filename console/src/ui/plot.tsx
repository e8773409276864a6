// Lines over time. uPlot draws them; colours come from the theme.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useTheme } from "./theme";

export interface Line {
  readonly label: string;
  /** The name of a colour of the theme, such as "mqtt". */
  readonly color: string;
  readonly values: readonly (number | null)[];
}

export interface PlotProps {
  readonly times: readonly number[];
  readonly lines: readonly Line[];
  readonly format: (value: number | null) => string;
  readonly height?: number;
  readonly label: string;
}

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function clock(seconds: number): string {
  const date = new Date(seconds * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

/** Distances of marks in time; labels have seconds, so that two marks are a second apart. */
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400];
/** The shortest time that is drawn. */
const SPAN_S = 10;

/** Distances of marks, from the smallest at which two labels are not the same. Bytes have powers of 2. */
function stepsOf(format: PlotProps["format"]): number[] {
  if (format(1024).includes("KiB")) {
    return Array.from({ length: 51 }, (_, power) => 2 ** power);
  }
  const least = format(0.1) === format(0) || format(0.1) === format(0.2) ? 0 : -1;
  const powers = Array.from({ length: 18 - least }, (_, at) => 10 ** (at + least));
  return powers.flatMap((power) => [power, 2 * power, 5 * power]);
}

function timeRange(_plot: uPlot, low: number | null, high: number | null): uPlot.Range.MinMax {
  return low === null || high === null ? [0, SPAN_S] : [Math.min(low, high - SPAN_S), high];
}

function optionsOf(props: PlotProps, width: number): uPlot.Options {
  const axis = {
    stroke: colour("faint"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return {
    width,
    height: props.height ?? 190,
    legend: {
      live: false,
      show: props.lines.length > 1,
      markers: { width: 0, fill: (_plot, at) => colour(props.lines[at - 1]?.color ?? "faint") },
    },
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { range: timeRange }, y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      {
        ...axis,
        values: (plot, marks) => marks.map((mark) => (plot.data[0].length > 0 ? clock(mark) : "")),
        incrs: SECONDS,
        space: 70,
      },
      {
        ...axis,
        values: (_plot, marks) => marks.map((mark) => props.format(mark)),
        incrs: stepsOf(props.format),
        size: 62,
      },
    ],
    series: [
      {},
      ...props.lines.map((line) => ({
        label: line.label,
        stroke: colour(line.color),
        fill: `${colour(line.color)}1c`,
        width: 1.6,
        points: { show: false },
      })),
    ],
  };
}

function dataOf(props: PlotProps): uPlot.AlignedData {
  return [[...props.times], ...props.lines.map((line) => [...line.values])];
}

export function Plot(props: PlotProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const theme = useTheme();
  const shape = props.lines.map((line) => line.label + line.color).join();
  useEffect(() => {
    const place = box.current;
    if (!place) return;
    plot.current = new uPlot(optionsOf(props, place.clientWidth || 300), dataOf(props), place);
    const watch = new ResizeObserver(() => {
      plot.current?.setSize({ width: place.clientWidth, height: props.height ?? 190 });
    });
    watch.observe(place);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
    };
  }, [shape, theme, props.height]);
  useEffect(() => {
    plot.current?.setData(dataOf(props));
  }, [props.times, props.lines]);
  return <div class="plot" ref={box} role="img" aria-label={props.label} />;
}
