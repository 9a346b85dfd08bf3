//! A comparison as one page with a picture: a point and an interval for each benchmark.
//!
//! Input: a [`Comparison`]. Output: HTML that loads nothing and runs no script. This module
//! computes places in the picture, but no figure.

use crate::compare::{Comparison, LEVEL, Row, Verdict};
use crate::table::{line, time};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
/// The picture of a row, in SVG's units.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 16.0;
/// Room at both ends, for the labels of the outermost lines.
const MARGIN: f64 = 24.0;
/// The picture's ends, in percent: the smallest that holds all intervals is used. Intervals beyond
/// the widest are cut off, with an arrow.
const ENDS: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

/// The page's HTML.
pub(crate) fn page(comparison: &Comparison) -> String {
    let mut page = String::new();
    line!(page, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">");
    line!(page, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    line!(
        page,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">"
    );
    line!(page, "<title>kernlane bench: before and after</title>");
    line!(page, "<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Before and after</h1>");
    line!(
        page,
        "<p>{} faster, {} slower, {} with no difference found, {} not compared. Holm's correction: \
         the probability of one or more wrong verdicts is {} %.</p>",
        comparison.count(Verdict::Faster),
        comparison.count(Verdict::Slower),
        comparison.count(Verdict::NoDifferenceFound),
        comparison.left_out.len(),
        100.0 * LEVEL
    );
    if !comparison.rows.is_empty() {
        rows(&mut page, &comparison.rows);
    }
    left_out(&mut page, comparison);
    conditions(&mut page, comparison);
    line!(
        page,
        "<footer><p>Measured on the processor, not simulated. A change is the time of an operation \
         after by before, less 100 %: left of 0 is faster. The line is its 95 % interval. An arrow \
         stands where it goes on outside of the picture.</p></footer>\n</body>\n</html>"
    );
    page
}

/// From percent to a place in the picture.
struct Scale {
    end: f64,
}

impl Scale {
    fn of(rows: &[Row]) -> Scale {
        let reach = rows.iter().flat_map(|row| row.percent).map(f64::abs).fold(0.0, f64::max);
        let end = ENDS.into_iter().find(|end| reach <= *end);
        Scale { end: end.unwrap_or(ENDS[ENDS.len() - 1]) }
    }

    fn at(&self, percent: f64) -> f64 {
        let half = WIDTH / 2.0;
        half + percent.clamp(-self.end, self.end) / self.end * (half - MARGIN)
    }

    fn lines(&self) -> [f64; 5] {
        [-1.0, -0.5, 0.0, 0.5, 1.0].map(|share| share * self.end)
    }

    fn header(&self) -> String {
        let mut text = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" aria-hidden=\"true\">");
        for percent in self.lines() {
            let sign = if percent > 0.0 { "+" } else { "" };
            let at = self.at(percent);
            let _ = write!(text, "<text x=\"{at}\" y=\"12\">{sign}{percent} %</text>");
        }
        text + "</svg>"
    }

    fn row(&self, row: &Row) -> String {
        let [change, low, high] = row.percent;
        let label = format!("{change:+.2} %, from {low:+.2} % to {high:+.2} %");
        let mut text = format!(
            "<svg class=\"{}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{label}\"><title>{label}</title>",
            class(row.verdict)
        );
        for percent in self.lines() {
            let kind = if percent == 0.0 { "zero" } else { "grid" };
            let at = self.at(percent);
            let _ = write!(
                text,
                "<line class=\"{kind}\" x1=\"{at}\" y1=\"0\" x2=\"{at}\" y2=\"{HEIGHT}\"/>"
            );
        }
        let [change_at, from, to] = row.percent.map(|percent| format!("{:.1}", self.at(percent)));
        let _ = write!(
            text,
            "<line class=\"mark\" x1=\"{from}\" y1=\"8\" x2=\"{to}\" y2=\"8\"/>\
             <circle class=\"mark\" cx=\"{change_at}\" cy=\"8\" r=\"3\"/>"
        );
        for (end, outwards) in [(low, -1.0), (high, 1.0)] {
            if end.abs() > self.end {
                let at = self.at(end);
                let tip = at + 8.0 * outwards * (end * outwards).signum();
                let _ = write!(text, "<path class=\"mark\" d=\"M{at} 4L{tip} 8L{at} 12z\"/>");
            }
        }
        text + "</svg>"
    }
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoDifferenceFound => "same",
    }
}

fn rows(page: &mut String, rows: &[Row]) {
    let scale = Scale::of(rows);
    line!(
        page,
        "<div class=\"scroll\"><table>\n<thead><tr><th>benchmark</th><th>before</th><th>after</th>\
         <th>change</th><th>95 % interval</th><th>{}</th><th class=\"text\">verdict</th></tr>\
         </thead>\n<tbody>",
        scale.header()
    );
    for row in rows {
        let [before, after] = row.nanoseconds.map(time);
        let [change, low, high] = row.percent;
        let remark = if row.noisy { " (too noisy)" } else { "" };
        line!(
            page,
            "<tr><td>{}</td><td>{before}</td><td>{after}</td><td>{change:+.2} %</td>\
             <td>{low:+.2} … {high:+.2} %</td><td>{}</td>\
             <td class=\"text {}\">{}{remark}</td></tr>",
            escaped(&row.name),
            scale.row(row),
            class(row.verdict),
            row.verdict.title()
        );
    }
    line!(page, "</tbody></table></div>");
}

fn left_out(page: &mut String, comparison: &Comparison) {
    if comparison.left_out.is_empty() {
        return;
    }
    line!(page, "<h2>Not compared</h2>\n<table>");
    for (name, why) in &comparison.left_out {
        let (name, why) = (escaped(name), escaped(why));
        line!(page, "<tr><td>{name}</td><td class=\"text wide\">{why}</td></tr>");
    }
    line!(page, "</table>");
}

fn conditions(page: &mut String, comparison: &Comparison) {
    line!(page, "<h2>Conditions</h2>");
    if comparison.conditions.is_empty() {
        line!(page, "<p>The two runs share all conditions.</p>");
    } else {
        line!(
            page,
            "<p>The two runs do not share these conditions.</p>\n<table>\n<tr><th>condition</th>\
             <th class=\"text\">before</th><th class=\"text\">after</th></tr>"
        );
        for (name, before, after) in &comparison.conditions {
            let cell = |text: &str| format!("<td class=\"text wide\">{}</td>", escaped(text));
            line!(page, "<tr><td>{name}</td>{}{}</tr>", cell(before), cell(after));
        }
        line!(page, "</table>");
    }
    for (which, warnings) in ["before", "after"].iter().zip(&comparison.warnings) {
        for warning in warnings {
            line!(page, "<p>Warning ({which}): {}</p>", escaped(warning));
        }
    }
}

/// Text that cannot become markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::examples::{entry, results};

    fn row(percent: [f64; 3]) -> Row {
        Row {
            name: "call/getpid".into(),
            nanoseconds: [100.0, 100.0],
            percent,
            probability: 1.0,
            verdict: Verdict::NoDifferenceFound,
            noisy: false,
        }
    }

    #[test]
    fn the_picture_holds_every_interval() {
        let rows = [row([3.0, 2.0, 4.5]), row([-1.0, -3.0, 1.0])];
        let scale = Scale::of(&rows);
        assert_eq!(scale.end, 5.0);
        assert_eq!([0.0, -5.0, 5.0].map(|percent| scale.at(percent)), [240.0, 24.0, 456.0]);
        // 2.5 % of 5 % is half of the 216 units right of the middle.
        assert_eq!(scale.at(2.5), 348.0);
        assert!(!scale.row(&rows[0]).contains("<path"));
        assert!(scale.row(&rows[0]).contains("x1=\"326.4\" y1=\"8\" x2=\"434.4\""));
    }

    #[test]
    fn what_does_not_fit_has_an_arrow() {
        let rows = [row([300.0, 150.0, 500.0]), row([0.0, -0.5, 0.5])];
        let scale = Scale::of(&rows);
        assert_eq!(scale.end, 200.0);
        let picture = scale.row(&rows[0]);
        assert!(picture.contains("M456 4L464 8L456 12z"), "{picture}");
        assert_eq!(picture.matches("<path").count(), 1);
    }

    #[test]
    fn the_page_shows_every_row_and_loads_nothing() {
        let before = results(vec![
            entry("call/getpid", 100.0, 0.5),
            entry("call/umask", 80.0, 0.5),
            entry("mix/web", 9e6, 20.0),
        ]);
        let mut after = results(vec![
            entry("call/getpid", 105.0, 0.5),
            entry("call/umask", 76.0, 0.5),
            entry("mix/shell", 9e6, 20.0),
        ]);
        after.conditions.command_line = Some("a=</td><script>\"&".into());
        after.conditions.warnings.push("<b>".into());
        let page = page(&Comparison::new(&before, &after));
        assert_eq!(page.matches("role=\"img\"").count(), 2);
        for part in [
            "<td>call/getpid</td><td>100.0 ns</td><td>105.0 ns</td><td>+5.00 %</td>",
            "class=\"text slower\">slower</td>",
            "class=\"text faster\">faster</td>",
            "1 faster, 1 slower, 0 with no difference found, 2 not compared",
            "<td>mix/shell</td><td class=\"text wide\">before: not in this result</td>",
            "a=&lt;/td&gt;&lt;script&gt;&quot;&amp;",
            "Warning (after): &lt;b&gt;",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        for part in ["<script", "http:", "https:", "url(", "src=\"", "<link"] {
            assert!(!page.contains(part), "{part}");
        }
    }

    #[test]
    fn a_comparison_of_nothing_is_a_page_too() {
        let page = page(&Comparison::new(&results(vec![]), &results(vec![])));
        assert!(page.contains("The two runs share all conditions") && !page.contains("<thead>"));
    }
}
