// Colours that colour-blind readers can tell apart (Okabe and Ito, 2008).
export const stageColours = ["#999999", "#56b4e9", "#e69f00", "#009e73", "#0072b2", "#cc79a7", "#f0e442"];
export const statusColours = ["#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#999999", "#d55e00"];
export const functionColours = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2", "#999999"];

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const legend = (names, colours) => {
  const p = document.createElement("p");
  p.className = "legend";
  names.forEach((name, i) => {
    const s = document.createElement("span"), box = document.createElement("i");
    box.style.background = colours[i];
    s.append(box, name);
    p.append(s);
  });
  return p;
};

// dash draws the objective, unless it is above the scale.
export function dash(u, value) {
  if (!value || value > u.scales.y.max) return;
  const y = u.valToPos(value, "y", true), ctx = u.ctx;
  ctx.save();
  ctx.strokeStyle = css("--bad");
  ctx.setLineDash([6, 4]);
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.moveTo(u.bbox.left, y);
  ctx.lineTo(u.bbox.left + u.bbox.width, y);
  ctx.stroke();
  ctx.restore();
}
