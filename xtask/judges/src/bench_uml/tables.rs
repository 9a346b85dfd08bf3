//! Measured and simulated speeds as text and as JSON.
//!
//! Input: what was measured, and what the model says. Output: a table of each, and how far they
//! agree.

use super::agreement::Agreement;
use super::kernels::{MeasuredKernel, ORIGINAL};
use super::{LayoutMeasurements, ModelSpeeds, columns};
use host::table::{Column, TextTable};
use lab::kept::Figure;
use serde_json::json;
use std::collections::BTreeMap;

/// Measured and simulated figures side by side. They never share a column.
pub(super) struct Tables<'a> {
    pub measured: &'a LayoutMeasurements,
    /// Speeds in user mode, and with the time of the host's kernel; `None`: nothing was simulated.
    pub model: Option<[ModelSpeeds; 2]>,
    pub kernels: &'a [MeasuredKernel],
    /// The kernels that are also compared with one another, as (kernel, other one).
    pub pairs: Vec<(&'a str, &'a str)>,
    pub conditions: Vec<String>,
}

impl Tables<'_> {
    pub(super) fn document(&self) -> serde_json::Value {
        let row = |kernel: &MeasuredKernel| {
            let loads: BTreeMap<&str, Option<Figure>> =
                columns().map(|load| (load, self.measured.figure(kernel.name, load))).collect();
            let by_load = |model: &ModelSpeeds| -> Option<BTreeMap<&str, Option<f64>>> {
                Some(columns().zip(*model.get(kernel.name)?).collect())
            };
            let simulated = self.model.as_ref().map(|model| model.each_ref().map(by_load));
            let [user_mode, with_host] = simulated.unwrap_or_default();
            json!({
                "kernel": kernel.name,
                "measured": loads,
                "simulated_user_mode": user_mode,
                "simulated": with_host,
            })
        };
        json!({
            "conditions": self.conditions,
            "unit": "core cycles of the original kernel over those of this one; of what was \
                     measured the ends of the 95 % interval over starts",
            "kernels": self.kernels.iter().skip(1).map(row).collect::<Vec<_>>(),
            "pairs": self.pairs.iter().map(|&pair| self.pair_document(pair)).collect::<Vec<_>>(),
        })
    }

    /// The speed of a kernel over that of another one.
    fn pair_document(&self, (kernel, other): (&str, &str)) -> serde_json::Value {
        let figure = |load| (load, self.measured.figure_over(kernel, other, load));
        let loads: BTreeMap<&str, Option<Figure>> = columns().map(figure).collect();
        json!({ "kernel": kernel, "over": other, "measured": loads })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}\n\nMeasured speed relative to the kernel \"{ORIGINAL}\", in core cycles, with \
             half of the 95 % interval\n",
            self.conditions.join("\n")
        );
        let names: Vec<&str> = self.kernels[1..].iter().map(|kernel| kernel.name).collect();
        text += &rows(&names, |at, load| self.measured.figure(names[at], load).map(measured));
        if !self.pairs.is_empty() {
            text += "\nMeasured speed relative to another kernel, in the same starts\n";
            let pairs: Vec<String> =
                self.pairs.iter().map(|(kernel, other)| format!("{kernel} / {other}")).collect();
            text += &rows(&pairs, |at, load| {
                let (kernel, other) = self.pairs[at];
                self.measured.figure_over(kernel, other, load).map(measured)
            });
        }
        let Some([user_mode, with_host]) = &self.model else { return text };
        for (title, model) in [
            ("Simulated, in user mode", user_mode),
            ("Simulated, with the time of the host's kernel as it was measured", with_host),
        ] {
            text += &format!("\n{title}\n");
            text += &rows(&names, |kernel, load| {
                let at = columns().position(|column| column == load)?;
                Some(format!("{:.3}", model.get(names[kernel])?[at]?))
            });
        }
        text += "\n";
        for (at, load) in columns().enumerate() {
            let both = |kernel: &MeasuredKernel| {
                let simulated = with_host.get(kernel.name)?[at]?;
                Some((self.measured.figure(kernel.name, load)?, simulated))
            };
            let kernels: Vec<_> = self.kernels.iter().skip(1).filter_map(both).collect();
            text += &Agreement::new(&kernels).text(load);
        }
        text
    }
}

/// A measured figure with half of its interval.
fn measured(figure: Figure) -> String {
    format!("{:.3} ±{:.2} %", figure.value, 100.0 * figure.half_width())
}

/// The least width of the first column, in characters.
const NAME: usize = 18;

/// A table with a row for each kernel, or pair of kernels, and a column for each load. `cell`: by
/// the number of the row, and the load.
fn rows<N: AsRef<str>>(names: &[N], cell: impl Fn(usize, &str) -> Option<String>) -> String {
    let loads = columns().map(|load| Column::right(load).fixed(16).gap(1));
    let longest = names.iter().map(|name| name.as_ref().chars().count()).max();
    let name = Column::left("kernel").fixed(longest.unwrap_or(0).max(NAME));
    let mut table = TextTable::of([name].into_iter().chain(loads));
    for (at, name) in names.iter().enumerate() {
        let of_load = |load| cell(at, load).unwrap_or("-".to_owned());
        let cells = [name.as_ref().to_owned()].into_iter().chain(columns().map(of_load));
        table.push(cells.collect());
    }
    table.to_text()
}
