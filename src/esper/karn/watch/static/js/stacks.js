/**
 * Stacked bars on a uPlot: parts above zero upwards, parts below zero downwards.
 */

/** The range of a stack's axis. */
export function stackRange(series) {
  return () => {
    const [low, high] = ends(series);
    const room = (high - low) * 0.04 || 1;
    return [low < 0 ? low - room : 0, high > 0 ? high + room : 0];
  };
}

function ends(series) {
  let [low, high] = [0, 0];
  for (let place = 0; place < (series[0]?.values.length ?? 0); place++) {
    let [below, above] = [0, 0];
    for (const { values } of series) {
      if (values[place] > 0) above += values[place];
      else below += values[place] ?? 0;
    }
    low = Math.min(low, below);
    high = Math.max(high, above);
  }
  return [low, high];
}

/** Draw the bars; a hairline of the page between two parts keeps them apart where colours do not. */
export function drawStack(plot, series, colourOf) {
  const { ctx, data } = plot;
  const x = data[0];
  if (!x.length) return;
  const ratio = devicePixelRatio;
  const step = x.length > 1 ? (plot.valToPos(x[x.length - 1], "x", true) - plot.valToPos(x[0], "x", true)) / (x[x.length - 1] - x[0] || 1) : plot.bbox.width / 2;
  const width = Math.max(1, Math.min(step * 0.86, 40 * ratio));
  const gap = width > 5 * ratio ? ratio * 0.75 : 0;
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  ctx.clip();
  const above = new Float64Array(x.length);
  const below = new Float64Array(x.length);
  series.forEach(({ values }, number) => {
    ctx.fillStyle = colourOf(number);
    values.forEach((value, place) => {
      if (!value) return;
      const base = value > 0 ? above : below;
      const from = plot.valToPos(base[place], "y", true);
      base[place] += value;
      const to = plot.valToPos(base[place], "y", true);
      const [top, height] = [Math.min(from, to), Math.abs(to - from)];
      ctx.fillRect(plot.valToPos(x[place], "x", true) - width / 2, top, width, Math.max(height - gap, Math.min(height, 0.5)));
    });
  });
  ctx.restore();
}
