// The camera, or the bundled pictures as a clip: one frame in flight, always the newest. The
// boxes are drawn on the frame that they belong to.
export class Camera {
  constructor(state) {
    this.state = state;
    this.canvas = document.querySelector("#camera canvas");
    this.text = document.getElementById("camera-text");
    this.select = document.getElementById("camera-function");
    this.run = 0; // number of the current run; another number ends a run
    document.getElementById("camera-start").addEventListener("click", () => this.start("camera"));
    document.getElementById("clip-start").addEventListener("click", () => this.start("clip"));
    this.select.addEventListener("change", () => { if (this.kind) this.start(this.kind); });
    this.update(state);
  }

  update(state) {
    this.state = state;
    const names = state.functions.filter((f) => f.pictures).map((f) => f.name), chosen = this.select.value;
    if ([...this.select.options].map((o) => o.value).join() === names.join()) return;
    this.select.replaceChildren(...names.map((name) => new Option(name, name)));
    this.select.value = names.includes(chosen) ? chosen : names.includes("face") ? "face" : names[0] || "";
  }

  async start(kind) {
    const run = ++this.run, name = this.select.value;
    const f = this.state.functions.find((x) => x.name === name);
    if (!f) { this.text.textContent = "No function takes pictures."; return; }
    this.kind = kind;
    let source = null;
    if (kind === "camera") {
      try {
        this.stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480 } });
        source = document.createElement("video");
        source.srcObject = this.stream;
        source.muted = true;
        await source.play();
      } catch (e) {
        this.text.textContent = `No camera (${e.name}); showing the clip.`;
        source = null;
      }
    }
    if (!source) source = await loadClip(this.state.clip);
    if (run !== this.run) return;
    await this.send(run, f, source);
    if (source.srcObject) source.srcObject.getTracks().forEach((t) => t.stop());
  }

  // send sends frames until another run begins. It opens a lost connection again.
  async send(run, f, source) {
    let socket = null;
    while (run === this.run) {
      const frame = grab(source), began = performance.now();
      const jpeg = await new Promise((done) => frame.toBlob(done, "image/jpeg", 0.95));
      // Nothing may wait between this check and the send: a connection can end in any await.
      if (socket?.readyState !== WebSocket.OPEN) {
        socket = await open(f.name);
        if (!socket) { this.text.textContent = "no connection"; await pause(500); continue; }
      }
      socket.send(jpeg);
      const answer = await reply(socket);
      if (run !== this.run) break;
      if (!answer) { this.text.textContent = socket.reason || "connection lost"; socket.close(); socket = null; await pause(200); continue; }
      draw(this.canvas, frame, answer.found, frame.width);
      const age = performance.now() - began;
      const boxes = answer.found.filter((o) => o.box), what = boxes.concat(answer.found.filter((o) => !o.box).slice(0, 1)).map(describe);
      this.text.textContent = `${f.name}: ${answer.status}, ${age.toFixed(1)} ms old · ${what.join(", ") || "nothing found"}`;
      this.canvas.dataset.answers = (+this.canvas.dataset.answers || 0) + 1;
      this.canvas.dataset.boxes = JSON.stringify(boxes);
      await pause(source.pause_ms || 0);
      await new Promise(requestAnimationFrame);
    }
    if (socket) socket.close();
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function open(name) {
  return new Promise((done) => {
    const url = new URL(`api/camera?function=${encodeURIComponent(name)}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    socket.onopen = () => done(socket);
    socket.onerror = () => done(null);
  });
}

// reply waits for the answer to a frame; null if the connection is lost or silent.
function reply(socket) {
  return new Promise((done) => {
    const late = setTimeout(() => done(null), 12000);
    const end = (v) => { clearTimeout(late); done(v); };
    socket.onmessage = (m) => end(JSON.parse(m.data));
    socket.onclose = (e) => { socket.reason = e.reason; end(null); };
  });
}

async function loadClip(files) {
  const pictures = await Promise.all(files.map((name) => new Promise((done) => {
    const img = new Image();
    img.onload = () => done(img);
    img.onerror = () => done(null);
    img.src = `api/clip/${encodeURIComponent(name)}`;
  })));
  return { clip: pictures.filter(Boolean), began: performance.now(), pause_ms: 30 };
}

function grab(source) {
  let picture = source, width = source.videoWidth, height = source.videoHeight;
  if (source.clip) {
    picture = source.clip[Math.floor((performance.now() - source.began) / 2000) % source.clip.length];
    [width, height] = [picture.naturalWidth, picture.naturalHeight];
  }
  const scale = Math.min(1, 640 / width);
  const copy = Object.assign(document.createElement("canvas"), { width: Math.round(width * scale), height: Math.round(height * scale) });
  copy.getContext("2d").drawImage(picture, 0, 0, copy.width, copy.height);
  return copy;
}

// describe names something that was found.
export const describe = (o) => `${o.label || `class ${o.class}`} ${(100 * o.score).toFixed(0)} %`;

// draw shows a picture, enlarged by a factor, with the boxes in it, and their outlines, points and masks. These are
// in the pixels of a picture of width from.
export function draw(canvas, picture, found, from, factor = 1) {
  const width = picture.width * factor, height = picture.height * factor, scale = width / from;
  canvas.width = width;
  canvas.height = height;
  const ctx = canvas.getContext("2d");
  ctx.imageSmoothingEnabled = factor === 1;
  ctx.drawImage(picture, 0, 0, width, height);
  ctx.lineWidth = Math.max(2, width / 200);
  ctx.font = `${Math.max(12, width / 40)}px system-ui`;
  const line = Math.max(16, width / 30);
  for (const o of found.filter((o) => o.box)) {
    const [x0, y0, x1, y1] = o.box.map((v) => v * scale);
    ctx.strokeStyle = "#f0e442";
    ctx.fillStyle = "#f0e44260";
    for (const [left, top, right, bottom] of o.mask || []) ctx.fillRect(left * scale, top * scale, (right - left) * scale, (bottom - top) * scale);
    ctx.beginPath();
    if (o.corners) for (const [x, y] of o.corners) ctx.lineTo(x * scale, y * scale);
    else ctx.rect(x0, y0, x1 - x0, y1 - y0);
    ctx.closePath();
    ctx.stroke();
    ctx.fillStyle = "#f0e442";
    for (const [x, y] of o.points || []) ctx.fillRect(x * scale - 2, y * scale - 2, 5, 5);
    const text = describe(o), top = Math.max(0, y0 - line);
    ctx.fillStyle = "#000c";
    ctx.fillRect(x0, top, ctx.measureText(text).width + 6, line);
    ctx.fillStyle = "#fff";
    ctx.fillText(text, x0 + 3, top + 0.8 * line);
  }
}
