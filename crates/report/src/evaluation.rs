//! Torrellas' figures 11 to 17 from our recordings, for a terminal: for each figure, what the paper
//! says about it, and a table below.
//!
//! Input: the trials of the evaluation. Output: text. Counts nothing.

use host::table::TextTable;
use replay::evaluation::{
    AREAS, Area, ByClass, CacheShape, Evaluation, LINES, OptimizationLevel, PENALTIES, SIZES, WAYS,
    WorkloadEvaluation, figure_15, peaks,
};
use std::fmt::Write as _;

/// The tables of all figures.
pub fn text(evaluation: &Evaluation) -> String {
    let Evaluation { machine, cache, kernel, .. } = evaluation;
    let mut text = format!(
        "machine {machine}: {}; kernel {}\n\
         layouts from the average of all recordings given; simulated, not measured\n",
        name(*cache),
        kernel.0
    );
    let figures = [
        (
            "11",
            "misses by cause, in % of all of Base's",
            levels(evaluation, &OptimizationLevel::CAUSES),
        ),
        (
            "12",
            "kernel, by class of block in OptL: bytes fetched, and misses in % of Base's",
            classes(evaluation),
        ),
        ("13", "kernel misses by 1 KB of original addresses", addresses(evaluation)),
        (
            "14",
            "misses for each 100 instructions by size; speed of OptS over Base",
            sizes(evaluation),
        ),
        ("15", "misses by what lies in the SelfConfFree area, in % of Base's", areas(evaluation)),
        ("16", "misses for each 100 instructions by line and by ways", lines_and_ways(evaluation)),
        (
            "17",
            "misses by cause with separate and reserved caches, and when loops lie with their \
             callees, in % of all of Base's",
            levels(evaluation, &OptimizationLevel::SETUPS),
        ),
    ];
    for (figure, title, table) in figures {
        let _ = write!(text, "\nfigure {figure}: {title}\n");
        for paper in evaluation.paper.iter().filter(|paper| paper.figure == figure) {
            let _ = writeln!(text, "  paper: {}", paper.says);
        }
        text += &table;
    }
    text
}

fn levels(evaluation: &Evaluation, levels: &[OptimizationLevel]) -> String {
    let mut table = TextTable::new(&[
        "workload",
        "",
        "kernel self",
        "kernel by user",
        "user by kernel",
        "user self",
        "cold",
        "together",
    ]);
    for (workload, &level) in rows(evaluation, levels) {
        let trial = |level| workload.trial(level, Area::Usual, evaluation.cache);
        let (Some(trial), Some(base)) = (trial(level), trial(OptimizationLevel::Base)) else {
            continue;
        };
        let all = base.misses.kernel.total() + base.misses.user.total();
        let (kernel, user) = (trial.misses.kernel, trial.misses.user);
        let shares = [
            kernel.own,
            kernel.other,
            user.other,
            user.own,
            kernel.cold + user.cold,
            kernel.total() + user.total(),
        ];
        let mut cells = vec![workload.workload.clone(), level.name().to_owned()];
        cells.extend(shares.map(|misses| share(misses, all)));
        table.push(cells);
    }
    table.to_text()
}

fn rows<'a>(
    evaluation: &'a Evaluation,
    levels: &'a [OptimizationLevel],
) -> impl Iterator<Item = (&'a WorkloadEvaluation, &'a OptimizationLevel)> {
    let of = move |workload| levels.iter().map(move |level| (workload, level));
    evaluation.workloads.iter().flat_map(of)
}

fn classes(evaluation: &Evaluation) -> String {
    let mut table = TextTable::new(&[
        "workload",
        "",
        "SelfConfFree",
        "MainSeq",
        "Loops",
        "OtherSeq",
        "no class",
        "together",
    ]);
    for workload in &evaluation.workloads {
        let mut row = |what: &str, found: &ByClass, all: u64| {
            let counts = [
                found.self_conf_free,
                found.main_seq,
                found.loops,
                found.other_seq,
                found.no_class,
                found.total(),
            ];
            let mut cells = vec![workload.workload.clone(), what.to_owned()];
            cells.extend(counts.map(|count| share(count, all)));
            table.push(cells);
        };
        row("fetched", &workload.references, workload.references.total());
        let base = workload.classes.iter().find(|(level, _)| *level == OptimizationLevel::Base);
        let all = base.map_or(0, |(_, misses)| misses.total());
        workload.classes.iter().for_each(|(level, misses)| row(level.name(), misses, all));
    }
    table.to_text()
}

fn addresses(evaluation: &Evaluation) -> String {
    let mut table = TextTable::new(&["workload", "", "misses of the worst", "half of all lie in"]);
    for workload in &evaluation.workloads {
        for (level, stretches) in &workload.addresses {
            let (most, half) = peaks(stretches);
            let cells = [
                workload.workload.clone(),
                level.name().to_owned(),
                most.to_string(),
                format!("{half} KB"),
            ];
            table.push(cells.to_vec());
        }
    }
    table.to_text()
}

fn sizes(evaluation: &Evaluation) -> String {
    let penalties = PENALTIES.map(|cycles| format!("+% at {cycles:.0}"));
    let mut titles = vec!["workload", "", "Base", "C-H", "OptS"];
    titles.extend(penalties.iter().map(String::as_str));
    let mut table = TextTable::new(&titles);
    for workload in &evaluation.workloads {
        for shape in SIZES.map(|bytes| evaluation.cache.sized(bytes)) {
            let mut cells = rates(workload, shape);
            let faster = PENALTIES.map(|penalty| workload.speed_increase(shape, penalty));
            cells.extend(faster.map(|increase| {
                increase.map_or("-".to_owned(), |increase| format!("{:.1}", 100.0 * increase))
            }));
            table.push(cells);
        }
    }
    table.to_text()
}

fn rates(workload: &WorkloadEvaluation, shape: CacheShape) -> Vec<String> {
    let mut cells = vec![workload.workload.clone(), name(shape)];
    let rate = |level| workload.miss_rate(level, shape);
    cells
        .extend(OptimizationLevel::SHAPED.map(|level| {
            rate(level).map_or("-".to_owned(), |rate| format!("{:.2}", 100.0 * rate))
        }));
    cells
}

fn areas(evaluation: &Evaluation) -> String {
    let bytes = |area: Area| {
        evaluation.areas.iter().find(|(known, _)| *known == area).map_or(0, |(_, bytes)| *bytes)
    };
    let title = |area: Area| match area {
        Area::Cutoff(percent) => format!("{percent} % ({} B)", bytes(area)),
        Area::None | Area::Usual => "none".to_owned(),
    };
    let titles = AREAS.map(title);
    let mut all = vec!["workload", ""];
    all.extend(titles.iter().map(String::as_str));
    let mut table = TextTable::new(&all);
    for workload in &evaluation.workloads {
        for shape in figure_15(evaluation.cache) {
            let mut cells = vec![workload.workload.clone(), name(shape)];
            let shares = AREAS.map(|area| {
                workload.share(OptimizationLevel::OptS, area, OptimizationLevel::Base, shape)
            });
            cells.extend(shares.map(|share| {
                share.map_or("-".to_owned(), |share| format!("{:.1}", 100.0 * share))
            }));
            table.push(cells);
        }
    }
    table.to_text()
}

fn lines_and_ways(evaluation: &Evaluation) -> String {
    let mut table = TextTable::new(&["workload", "", "Base", "C-H", "OptS"]);
    let own = evaluation.cache;
    for workload in &evaluation.workloads {
        let lines = LINES.map(|line| CacheShape { line, ..own });
        let ways = WAYS.map(|ways| own.with_ways(ways));
        for shape in lines.into_iter().chain(ways) {
            table.push(rates(workload, shape));
        }
    }
    table.to_text()
}

fn name(CacheShape { bytes, line, ways }: CacheShape) -> String {
    let ways = if ways == 1 { "1 way".to_owned() } else { format!("{ways} ways") };
    format!("{} KB, {ways}, {line} B", bytes >> 10)
}

fn share(part: u64, of: u64) -> String {
    format!("{:.1}", 100.0 * part as f64 / of.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::BuildId;
    use replay::evaluation::PAPER;
    use replay::examples::evaluated;

    #[test]
    fn each_figure_follows_what_the_paper_says() {
        let evaluation = Evaluation {
            machine: "torrellas-8k".into(),
            cache: CacheShape { bytes: 8 << 10, line: 32, ways: 1 },
            kernel: BuildId("0a0b".into()),
            areas: vec![(Area::Cutoff(40), 1234)],
            workloads: vec![evaluated()],
            paper: PAPER.to_vec(),
        };
        let text = text(&evaluation);
        assert_eq!(text.matches("  paper: ").count(), 7, "{text}");
        // 200 misses of Base; OptS has 74 + 20 + 2 + 3 + 1.
        let row = |start: &str| {
            text.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or("").to_owned()
        };
        let words =
            |start: &str| row(start).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words("net       OptS")[2..], ["37.0", "1.0", "1.5", "10.0", "0.5", "50.0"]);
        assert_eq!(words("net       fetched")[2..], ["5.0", "70.0", "1.0", "20.0", "4.0", "100.0"]);
        assert!(text.contains("40 % (1234 B)"), "{text}");
        assert!(text.contains("8 KB, 1 way, 32 B  2.00  1.20  1.00"), "{text}");
        // A shape that was not replayed has a dash.
        assert!(text.contains("4 KB, 1 way, 32 B     -     -     -"), "{text}");
    }
}
