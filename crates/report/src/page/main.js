// Builds the page.
(() => {
  const { recordings, comparisons } = JSON.parse(document.getElementById("data").textContent);
  const [report, contents] = ["report", "contents"].map((id) => document.getElementById(id));
  const add = (title, level, nodes) => {
    const id = `part-${report.children.length}`;
    const heading = element(level, { id }, title);
    report.append(element("section", { "aria-labelledby": id }, heading, ...nodes));
    contents.append(element("a", { href: `#${id}` }, title));
  };
  for (const recording of recordings) {
    const named = recordings.length > 1 ? `${recording.workload}: ` : "";
    const all = [
      ["kernel", recording.kernel],
      ["workload", recording.workload],
      ["seed", String(recording.seed)],
      ["machines", recording.table.machines.map((machine) => machine.name).join(", ") || "none"],
      ...Object.entries(recording.conditions),
    ];
    add(`Workload ${recording.workload}`, "h2", [
      cards(recording),
      conditionsOf(all, "Conditions"),
    ]);
    for (const [title, nodes] of sectionsOf(recording)) add(`${named}${title}`, "h3", nodes);
  }
  for (const [title, nodes] of comparisonSections(comparisons)) add(title, "h2", nodes);

  const workloads = [...new Set([...recordings, ...comparisons].map((one) => one.workload))];
  document.getElementById("title").textContent =
    recordings.length > 0 ? "Where the time goes" : "What the layout changed";
  document.getElementById("subtitle").textContent = `Workloads: ${workloads.join(", ")}`;
  document.title = `Kernlane: ${workloads.join(", ")}`;

  const theme = document.getElementById("theme");
  const isDark = () =>
    (document.documentElement.dataset.theme ??
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const showTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
  };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  theme.hidden = false;
  showTheme();
})();
