/**
 * Where the parts of a network are drawn: from left to right, or from top to bottom where there is little room.
 */

const BLOCK = { wide: 104, high: 46 };
const SEED = { wide: 118, high: 64 };
const STEP = 26;

/**
 * The network as a list of blocks, each with the slots that come after it. Slots of our own hosts are called by row and column (r0c1 is
 * before the pool of the second block, r1c1 behind it); elsewhere a slot is called like the module whose output it takes.
 * @param {string[]} slots
 * @param {Object<string, *>} member how the host is built
 * @returns {{name: string, about: string, slots: string[]}[]}
 */
export function blocksOf(slots, member) {
  const places = slots.map((slot) => /^r(\d+)c(\d+)$/.exec(slot));
  if (!slots.length || places.some((place) => place === null)) {
    return slots.map((slot) => ({ name: slot, about: "", slots: [slot] }));
  }
  const widths = String(member.widths ?? "").split("-").filter(Boolean);
  const kernels = String(member.kernels ?? "").split("-").filter(Boolean);
  const parts = String(member.parts ?? "").split("-").filter(Boolean);
  const columns = Math.max(...places.map((place) => Number(place[2]) + 1), widths.length || Number(member.layers ?? 0));
  return Array.from({ length: columns }, (_, column) => {
    const kernel = kernels[column] ?? member.kernel;
    const vision = widths.length > column ? `${widths[column]} ch, ${kernel}×${kernel}` : "";
    const language = widths.length ? "" : (parts[column] ?? "both").replace("both", "attn + mlp");
    return { name: `block ${column + 1}`, about: vision || language, slots: slots.filter((_, place) => Number(places[place][2]) === column) };
  });
}

/** Coordinates of everything: {width, height, wires, blocks, ends, slots}. */
export function layout(slots, member, narrow) {
  const blocks = blocksOf(slots, member);
  return narrow ? downwards(blocks) : across(blocks);
}

function across(blocks) {
  const y = 150;
  const seedY = 52;
  const drawn = { height: 196, wires: [], blocks: [], ends: [], slots: [] };
  let x = 14;
  drawn.ends.push({ x: x + 14, y, text: "in" });
  x += 34;
  const start = x;
  for (const { name, about, slots } of blocks) {
    x += STEP - 8;
    drawn.blocks.push({ x: x + BLOCK.wide / 2, y, name, about, ...BLOCK });
    x += BLOCK.wide;
    slots.forEach((slot, number) => {
      // The seed stands above its slot; two slots in a row need the room of two seeds.
      x += number === 0 ? 50 : SEED.wide + 14;
      drawn.slots.push({ slot, x, y, seed: { x, y: seedY, ...SEED } });
    });
    x += slots.length ? STEP : 0;
  }
  x += STEP;
  drawn.wires.push(`M${start} ${y}H${x}`, `M${x - 6} ${y - 5}L${x} ${y}L${x - 6} ${y + 5}`);
  drawn.ends.push({ x: x + 20, y, text: "out" });
  return { ...drawn, width: x + 44 };
}

function downwards(blocks) {
  const x = 86;
  const seedX = 236;
  const drawn = { width: 310, wires: [], blocks: [], ends: [], slots: [] };
  let y = 16;
  drawn.ends.push({ x, y, text: "in" });
  y += 12;
  const start = y;
  for (const { name, about, slots } of blocks) {
    y += STEP / 2;
    drawn.blocks.push({ x, y: y + BLOCK.high / 2, name, about, ...BLOCK });
    y += BLOCK.high;
    slots.forEach((slot) => {
      y += 52;
      drawn.slots.push({ slot, x, y, seed: { x: seedX, y: y - 12, ...SEED } });
    });
    y += STEP;
  }
  drawn.wires.push(`M${x} ${start}V${y}`, `M${x - 5} ${y - 6}L${x} ${y}L${x + 5} ${y - 6}`);
  drawn.ends.push({ x, y: y + 14, text: "out" });
  return { ...drawn, height: y + 28 };
}
