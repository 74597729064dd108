// The page of `raidx view`: shows what the server tells. Texts become text nodes, never markup; the
// only markup is the server's own SVG, which is parsed as XML and has no scripts.

const LIT_MS = 1200;
const REQUESTS_SHOWN = 12;
const EVENTS_SHOWN = 30;
const FOLLOW_MS = 1500;
const AGAIN_MS = 1000;
const get = (id) => document.getElementById(id);

let cells = new Map(); // key -> {group, cell, timer}
let stripes = 0;
let version = null;
let shown = null; // what the picture shows: "first:count"
let loading = false;
let again = false;
let followedAt = 0;
let planned = [];

function element(name, words, className) {
  const made = document.createElement(name);
  if (words !== undefined) made.textContent = words;
  if (className) made.className = className;
  return made;
}

async function ask(path, options) {
  const answer = await fetch(path, options);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error || `status ${answer.status}`);
  return told;
}

function place(id, text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  const drawing = document.importNode(parsed, true);
  const old = get(id).firstElementChild;
  if (old) renew(old, drawing);
  else get(id).replaceChildren(drawing);
}

// Makes *old* like *made*. Elements stay where they can: one that is replaced between the press and
// the release of a button gets no click, and loses the focus.
function renew(old, made) {
  if (old.nodeName !== made.nodeName || old.childNodes.length !== made.childNodes.length) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  [...made.childNodes].forEach((child, number) => renew(old.childNodes[number], child));
}

// -- the picture ---------------------------------------------------------------------------------

async function draw() {
  if (loading) { again = true; return; }
  loading = true;
  try {
    const first = Number(get("first").value) || 0;
    const count = Math.min(16, Math.max(1, Number(get("count").value) || 8));
    const told = await ask(`/picture?first=${first}&count=${count}`);
    const focused = document.activeElement?.dataset?.key;
    const lit = [...cells].filter(([, each]) => each.timer).map(([key, each]) => [key, each.kind]);
    for (const each of cells.values()) clearTimeout(each.timer);
    place("picture", told.svg);
    cells = new Map();
    for (const cell of told.picture.cells) {
      const group = get("picture").querySelector(`[data-key="${CSS.escape(cell.key)}"]`);
      if (group) cells.set(cell.key, { group, cell, timer: 0, kind: "" });
    }
    for (const [key, kind] of lit) light(key, kind);
    markPlan();
    if (focused && cells.has(focused)) focusCell(focused);
    shown = told.picture.stripes;
    get("picture").dataset.stripes = shown.join(" ");
  } catch (error) {
    if (!get("state").classList.contains("dead")) {
      say(error.message);
      setTimeout(draw, AGAIN_MS); // no news may come that would draw it
    }
  } finally {
    loading = false;
    if (again) { again = false; draw(); }
  }
}

function light(key, kind) {
  const each = cells.get(key);
  if (!each) return false;
  clearTimeout(each.timer);
  if (!(each.kind === "write" && kind === "read" && each.timer)) {
    each.group.classList.remove("read", "write");
    each.group.classList.add(kind);
    each.kind = kind;
  }
  each.timer = setTimeout(() => {
    each.group.classList.remove("read", "write");
    each.timer = 0;
  }, LIT_MS);
  return true;
}

// A record of the log lights its members: the cells follow at the checkpoint.
function lightLog(role) {
  const group = get("picture").querySelector(`.member[data-role="${Number(role)}"]`);
  if (!group || group.classList.contains("logging")) return;
  const words = group.querySelector(".state");
  const before = words.textContent;
  group.classList.add("logging");
  words.textContent = "log";
  setTimeout(() => {
    if (!group.classList.contains("logging")) return; // drawn anew, perhaps in another state
    group.classList.remove("logging");
    words.textContent = before;
  }, LIT_MS);
}

function follow(list) {
  if (!get("follow").checked || !shown || !list.length) return;
  const now = performance.now();
  if (now - followedAt < FOLLOW_MS) return;
  const stripe = Number(list[0][0].split(":")[0]);
  if (shown.includes(stripe)) { followedAt = now; return; }
  followedAt = now;
  const count = Number(get("count").value) || 8;
  get("first").value = Math.max(0, stripe - stripe % count);
  draw();
}

function focusCell(key) {
  for (const each of cells.values()) {
    each.group.setAttribute("tabindex", each.cell.key === key ? "0" : "-1");
    each.group.classList.toggle("same", each.cell.stripe === cells.get(key).cell.stripe);
  }
  cells.get(key).group.focus();
}

// The nearest cell in the direction of an arrow key, by the places of the rectangles.
function neighbour(key, dx, dy) {
  const spot = (each) => {
    const rect = each.group.querySelector("rect");
    return [Number(rect.getAttribute("x")), Number(rect.getAttribute("y"))];
  };
  const [x, y] = spot(cells.get(key));
  let best = null;
  let least = Infinity;
  for (const [other, each] of cells) {
    const [ox, oy] = spot(each);
    const along = (ox - x) * dx + (oy - y) * dy;
    const across = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
    if (along > 0 && along + 4 * across < least) { least = along + 4 * across; best = other; }
  }
  return best;
}

get("picture").addEventListener("keydown", (event) => {
  const key = event.target.closest?.("[data-key]")?.dataset.key;
  if (!key || !cells.has(key)) return;
  const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  if (steps[event.key]) {
    const next = neighbour(key, ...steps[event.key]);
    if (next) focusCell(next);
  } else if (event.key === "Enter" || event.key === " ") {
    planOfCell(key, "write");
  } else if (event.key === "r" || event.key === "R") {
    planOfCell(key, "read");
  } else return;
  event.preventDefault();
});

get("picture").addEventListener("click", (event) => {
  const key = event.target.closest("[data-key]")?.dataset.key;
  if (!key) return;
  focusCell(key);
  planOfCell(key, event.shiftKey ? "read" : "write");
});

// -- plans ---------------------------------------------------------------------------------------

let chunkBytes = 4096;

function planOfCell(key, operation) {
  const cell = cells.get(key).cell;
  if (cell.image_offset === null) {
    const data = [...cells.values()].find((each) =>
      each.cell.stripe === cell.stripe && each.cell.image_offset !== null);
    showLines(`${cell.name} of stripe ${cell.stripe}`, [
      `parity on member ${cell.role}, at byte ${cell.member_offset}`,
      "The XOR of its chain is zero: it changes with every write of its data cells.",
      data ? `Choose a data cell, such as ${data.cell.name}, for the plan of a write.` : "",
    ]);
    planned = [];
    markPlan();
    return;
  }
  showPlan(cell.image_offset, 512, operation);
}

async function showPlan(offset, length, operation) {
  try {
    const told = await ask(`/plan?offset=${offset}&length=${length}&operation=${operation}`);
    showLines(told.title, [told.summary, ...told.lines]);
    planned = told.cells;
  } catch (error) {
    showLines("No plan", [error.message]);
    planned = [];
  }
  markPlan();
}

function showLines(title, lines) {
  get("plan").replaceChildren(element("h3", title), ...lines.map((line) => element("p", line)));
}

function markPlan() {
  for (const each of cells.values()) each.group.classList.remove("plan-read", "plan-write");
  for (const [key, what] of planned) cells.get(key)?.group.classList.add(`plan-${what}`);
}

// -- what the stream tells -----------------------------------------------------------------------

function showState(told) {
  const line = get("state");
  line.classList.toggle("dead", !told.alive);
  if (!told.alive) {
    line.textContent = told.why;
    get("action").textContent = "This page goes on by itself when the array is mounted again.";
    version = null;
    return;
  }
  document.title = `${told.name}: raidx view`;
  get("name").textContent = `${told.name}: ${told.layout}, ${told.size} in chunks of ${told.chunk}`;
  line.classList.toggle("trouble", told.state !== "clean");
  line.textContent = `${told.state}; may lose ${told.redundancy_left} more`;
  get("action").textContent = told.action || "";
  stripes = told.stripes;
  get("first").max = Math.max(0, stripes - 1);
  showMembers(told);
  if (version !== told.version) {
    version = told.version;
    draw();
    if (told.moving) compare();
  }
}

function showMembers(told) {
  get("members").replaceChildren(...told.members.map((member) => {
    const row = element("tr");
    const faults = told.faults[member.path] || [];
    const state = [member.state, ...faults].join(", ");
    const values = [member.role < 0 ? "spare" : member.role, member.path ?? "missing", state,
      member.queue_now ?? "", member.reads ?? "", member.writes ?? ""];
    row.append(...values.map((value) => element("td", String(value))));
    if (state !== "active") row.className = "error";
    return row;
  }));
  const choice = get("do-member");
  const paths = told.members.map((member) => member.path ?? "");
  if ([...choice.options].map((option) => option.value).join("\n") !== paths.join("\n")) {
    const chosen = choice.value;
    choice.replaceChildren(...told.members.map((member) => {
      const option = element("option", `${member.role}: ${member.path}`);
      option.value = member.path ?? "";
      return option;
    }));
    if (paths.includes(chosen)) choice.value = chosen;
  }
  get("jobs").replaceChildren(...told.jobs.map((job) => {
    const label = element("label", `${job.kind} ${job.percent} % `);
    const bar = element("progress");
    bar.max = job.total;
    bar.value = job.done;
    label.append(bar);
    return label;
  }));
}

function showPass(told) {
  const elsewhere = told.cells.filter(([key, kind]) => !light(key, kind));
  if (elsewhere.length === told.cells.length) follow(elsewhere);
  else followedAt = performance.now();
  told.log.forEach(lightLog);
  for (const request of told.requests) {
    const item = element("li");
    const words = `${request.operation} ${request.length} bytes at ${request.offset}`;
    const button = element("button", `${words} of ${request.volume}`);
    button.type = "button";
    button.disabled = request.image_offset === null;
    button.addEventListener("click", () =>
      showPlan(request.image_offset, request.length, request.operation));
    item.append(button);
    get("requests").prepend(item);
  }
  while (get("requests").children.length > REQUESTS_SHOWN) get("requests").lastChild.remove();
  get("missed").textContent = told.missed ? `${told.missed} accesses were too fast to show` : "";
}

function showEvents(told) {
  get("events").replaceChildren(...told.events.slice(-EVENTS_SHOWN).reverse().map((each) => {
    const seconds = each.at_s;
    const at = seconds > 1e9 ? new Date(seconds * 1000).toLocaleTimeString() : `${seconds} s`;
    return element("li", `${at} ${each.message}`, each.severity);
  }));
}

async function compare() {
  try {
    const told = await ask("/compare");
    get("compared").hidden = !told.kind;
    if (!told.kind) return;
    place("before", told.before);
    place("after", told.after);
    get("compared-words").textContent = told.line;
    const both = (member, name) => {
      const [before, after] = [member.before[name], member.after[name]];
      if (before === null && after === null) return "";
      return before === after ? `${after}` : `${before ?? 0} \u2192 ${after ?? 0}`;
    };
    const names = ["data", "parity", "accesses"].filter((name) =>
      told.members.some((member) => member.before[name] || member.after[name]));
    const table = get("compared-members");
    for (const head of table.querySelectorAll("th[data-name]")) {
      head.hidden = !names.includes(head.dataset.name);
    }
    table.tBodies[0].replaceChildren(...told.members.map((member) => {
      const row = element("tr");
      const texts = [member.role, member.path ?? "missing", ...names.map((name) => both(member, name))];
      row.append(...texts.map((text) => element("td", String(text))));
      return row;
    }));
    for (const group of document.querySelectorAll(".pair .cell")) {
      group.removeAttribute("tabindex");
      group.setAttribute("role", "img");
    }
  } catch (error) {
    say(error.message);
  }
}

// -- breaking ------------------------------------------------------------------------------------

const NEEDS = { "fail-disk": ["member"], "replace-disk": ["member"], inject: ["member", "fault"] };

function say(words) { get("done").textContent = words; }

async function showBreaking() {
  const told = await ask("/me");
  get("break").hidden = !told.may_break;
  get("enter").hidden = told.entered;
  get("do").hidden = !told.entered;
  get("do-action").replaceChildren(...told.actions.map((name) => element("option", name)));
  get("do-action").dispatchEvent(new Event("change"));
}

get("do-action").addEventListener("change", () => {
  const needs = NEEDS[get("do-action").value] || [];
  get("do-member").disabled = !needs.includes("member");
  get("do-fault").disabled = !needs.includes("fault");
});

get("do").addEventListener("submit", async (event) => {
  event.preventDefault();
  const action = get("do-action").value;
  const body = { action };
  for (const name of NEEDS[action] || []) body[name] = get(`do-${name}`).value;
  say(`${action} ...`);
  try {
    await ask("/do", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    say(`${action}: done`);
  } catch (error) {
    say(error.message);
  }
});

get("enter").addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = new URLSearchParams(new FormData(get("enter")));
  const answer = await fetch("/enter", { method: "POST", body });
  get("enter").reset();
  say(answer.ok ? "" : "that is not the token");
  showBreaking();
});

get("leave").addEventListener("click", async () => {
  await fetch("/leave", { method: "POST" });
  showBreaking();
});

get("window").addEventListener("submit", (event) => {
  event.preventDefault();
  get("follow").checked = false;
  draw();
});

for (const [id, sign] of [["back", -1], ["on", 1]]) {
  get(id).addEventListener("click", () => {
    const next = Number(get("first").value) + sign * Number(get("count").value);
    get("first").value = Math.min(Math.max(0, stripes - 1), Math.max(0, next));
    get("follow").checked = false;
    draw();
  });
}

const stream = new EventSource("/stream");
for (const [name, show] of [["state", showState], ["pass", showPass], ["events", showEvents]]) {
  stream.addEventListener(name, (event) => show(JSON.parse(event.data)));
}
stream.addEventListener("error", () => {
  get("state").classList.add("dead");
  get("state").textContent = "the page's own server does not answer";
});
showBreaking().catch((error) => say(error.message));
