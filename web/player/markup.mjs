// The player's elements. Icons are drawn here because hosts differ in the icon fonts they bring.

const ICONS = {
  play: "M7 5v14l12-7z",
  pause: "M7 5h4v14H7zM13 5h4v14h-4z",
  back: "M17 6v12l-8-6zM6 6h2v12H6z",
  forward: "M7 6v12l8-6zM16 6h2v12h-2z",
  newest: "M5 6v12l7-6zM11 6v12l7-6zM18 6h2v12h-2z",
  sound: "M4 9v6h4l5 4V5L8 9zM16 8a5 5 0 0 1 0 8z",
  muted: "M4 9v6h4l5 4V5L8 9zM15.5 9.5l1.2-1.2 2 2 2-2 1.2 1.2-2 2 2 2-1.2 1.2-2-2-2 2-1.2-1.2 2-2z",
  copy: "M8 3h11v13h-2V5H8zM4 7h11v14H4zm2 2v10h7V9z",
  open: "M13 4h7v7h-2.5V8.3l-7.3 7.2-1.7-1.7 7.2-7.3H13zM4 6h6v2.5H6.500V17.500H15.500V14H18v6H4z",
  full: "M4 4h7v2.500H6.500V11H4zM13 4h7v7h-2.500V6.500H13zM4 13h2.500v4.500H11V20H4zM17.500 13H20v7h-7v-2.500h4.500z",
};

/** An element: element("div", { class: "x", "aria-label": "y" }, child, "text"). */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function setIcon(button, icon) {
  if (button.dataset.icon === icon) return;
  button.dataset.icon = icon;
  button.innerHTML = `<svg viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d="${ICONS[icon]}"/></svg>`;
}

function button(key, label, icon = key) {
  const made = element("button", { type: "button", class: "srh3-button", "data-action": key, "aria-label": label, title: label });
  setIcon(made, icon);
  return made;
}

/** Say what a button does now. */
export function setLabel(made, label) {
  if (made.getAttribute("aria-label") === label) return;
  made.setAttribute("aria-label", label);
  made.title = label;
}

/** Everything the player consists of, by name; `root` holds it all. */
export function markup(rows) {
  const canvas = element("canvas", { class: "srh3-canvas", role: "img", "aria-label": "no picture yet" });
  const wipe = element("div", {
    class: "srh3-wipe",
    role: "slider",
    tabindex: "0",
    "aria-label": "wipe from the render to the semantic map",
    "aria-valuemin": "0",
    "aria-valuemax": "100",
    "aria-valuenow": "0",
  });
  const names = element(
    "div",
    { class: "srh3-names", "aria-hidden": "true" },
    element("span", { class: "srh3-name-map" }, "map"),
    element("span", { class: "srh3-name-render" }, "render"),
  );
  const hint = element("div", { class: "srh3-hint" });
  const frame = element("div", { class: "srh3-frame" }, canvas, names, wipe);
  const stage = element("div", { class: "srh3-stage" }, frame, hint);
  const strip = element("canvas", { class: "srh3-strip", "aria-hidden": "true" });
  const head = element("div", { class: "srh3-head", "aria-hidden": "true" });
  const timeline = element(
    "div",
    { class: "srh3-timeline", role: "slider", tabindex: "0", "aria-label": "position in the render", "aria-valuemin": "0" },
    strip,
    head,
  );
  const buttons = {
    play: button("play", "play"),
    back: button("back", "one frame back"),
    forward: button("forward", "one frame forward"),
    newest: button("newest", "go to the newest chunk"),
    mute: button("mute", "this preview has no sound", "muted"),
    copy: button("copy", "copy this frame"),
    open: button("open", "open the file (when the render is over)"),
    full: button("full", "full screen"),
  };
  const time = element("span", { class: "srh3-time" }, "0:00 / 0:00");
  const { play, back, forward, newest, mute, copy, open, full } = buttons;
  const controls = element(
    "div",
    { class: "srh3-controls", role: "group", "aria-label": "playback" },
    ...[play, back, forward, newest, time, mute, copy, open, full],
  );
  const values = {};
  const table = element("dl", { class: "srh3-figures" });
  for (const row of rows) {
    values[row.key] = { label: element("dt", {}, row.label), value: element("dd", {}, row.value) };
    table.append(element("div", { "data-figure": row.key, title: row.hint }, values[row.key].label, values[row.key].value));
  }
  const status = element("div", { class: "srh3-status" });
  const voice = element("div", { class: "srh3-voice", role: "status", "aria-live": "polite" });
  const root = element(
    "div",
    { class: "srh3-player", role: "region", "aria-label": "live render preview" },
    ...[stage, timeline, controls, table, status, voice],
  );
  return { root, stage, frame, canvas, wipe, names, hint, timeline, strip, head, buttons, time, values, status, voice };
}
