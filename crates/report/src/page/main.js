// Builds the page.
const unpacked = async (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

const build = ({ recordings, comparisons }) => {
  const [report, contents] = ["report", "contents"].map((id) => document.getElementById(id));
  const add = (title, level, nodes, range) => {
    const id = `part-${report.children.length}`;
    const heading = element(level, { id }, title);
    const section = element("section", { "aria-labelledby": id }, heading, ...nodes);
    report.append(section);
    contents.append(element("a", { href: `#${id}` }, title));
    // Of sections that do not follow the range.
    if (range) range.follow(() => section.classList.toggle("whole", !range.isWhole()));
  };
  const ranges = element("div", { class: "ranges" });
  report.after(ranges);
  for (const recording of recordings) {
    const named = recordings.length > 1 ? `${recording.workload}: ` : "";
    const all = [
      ["kernel", recording.kernel],
      ["workload", recording.workload],
      ["seed", String(recording.seed)],
      ["machines", recording.table.machines.map((machine) => machine.name).join(", ") || "none"],
      ...Object.entries(recording.conditions),
    ];
    const explored = exploredOf(recording);
    add(`Workload ${recording.workload}`, "h2", [
      cards(recording, explored),
      conditionsOf(all, "Conditions"),
    ]);
    for (const [title, nodes, follows] of sectionsOf(recording, explored))
      add(`${named}${title}`, "h3", nodes, follows ? null : explored.range);
    ranges.append(rangeBar(recording, explored, named));
  }
  for (const [title, nodes] of comparisonSections(comparisons)) add(title, "h2", nodes);

  const workloads = [...new Set([...recordings, ...comparisons].map((one) => one.workload))];
  document.getElementById("title").textContent =
    recordings.length > 0 ? "Where the time goes" : "What the layout changed";
  document.getElementById("subtitle").textContent = `Workloads: ${workloads.join(", ")}`;
  document.title = `Kernlane: ${workloads.join(", ")}`;

  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const showTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    document.dispatchEvent(new Event("colors"));
  };
  const setTheme = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    showTheme();
  };
  theme.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  dark.addEventListener("change", showTheme);
  // Paper is white.
  let onScreen = null;
  window.addEventListener("beforeprint", () => {
    onScreen = document.documentElement.dataset.theme;
    setTheme("light");
  });
  window.addEventListener("afterprint", () => setTheme(onScreen));
  theme.hidden = false;
  showTheme();
};

unpacked(document.getElementById("data").textContent)
  .then(build)
  .catch((error) => {
    document.getElementById("report").append(element("p", { class: "bad" }, String(error)));
    throw error;
  })
  .finally(() => (document.documentElement.dataset.ready = ""));
