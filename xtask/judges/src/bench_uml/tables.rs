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
    /// The kernel that is also compared with each other one.
    pub rival: Option<&'a str>,
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
            "rival": self.rival.map(|rival| self.rival_document(rival)),
        })
    }

    /// The speed of `rival` over that of each other kernel.
    fn rival_document(&self, rival: &str) -> serde_json::Value {
        let others = self.kernels.iter().filter(|kernel| kernel.name != rival);
        let over: BTreeMap<&str, BTreeMap<&str, Option<Figure>>> = others
            .map(|other| {
                let figure = |load| (load, self.measured.figure_over(rival, other.name, load));
                (other.name, columns().map(figure).collect())
            })
            .collect();
        json!({ "kernel": rival, "over": over })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}\n\nMeasured speed relative to the kernel \"{ORIGINAL}\", in core cycles, with \
             half of the 95 % interval\n",
            self.conditions.join("\n")
        );
        let all = self.kernels;
        text += &rows(&all[1..], |kernel, load| self.measured.figure(kernel, load).map(measured));
        if let Some(rival) = self.rival {
            text += &format!(
                "\nMeasured speed of \"{rival}\" relative to each other kernel, in the same \
                 starts\n"
            );
            let others: Vec<MeasuredKernel> =
                all.iter().filter(|kernel| kernel.name != rival).cloned().collect();
            text += &rows(&others, |other, load| {
                self.measured.figure_over(rival, other, load).map(measured)
            });
        }
        let Some([user_mode, with_host]) = &self.model else { return text };
        for (title, model) in [
            ("Simulated, in user mode", user_mode),
            ("Simulated, with the time of the host's kernel as it was measured", with_host),
        ] {
            text += &format!("\n{title}\n");
            text += &rows(&all[1..], |kernel, load| {
                let at = columns().position(|column| column == load)?;
                Some(format!("{:.3}", model.get(kernel)?[at]?))
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

/// A table with a row for each kernel and a column for each load.
fn rows(kernels: &[MeasuredKernel], cell: impl Fn(&str, &str) -> Option<String>) -> String {
    let loads = columns().map(|load| Column::right(load).fixed(16).gap(1));
    let mut table = TextTable::of([Column::left("kernel").fixed(18)].into_iter().chain(loads));
    for kernel in kernels {
        let of_load = |load| cell(kernel.name, load).unwrap_or("-".to_owned());
        let cells = [kernel.name.to_owned()].into_iter().chain(columns().map(of_load));
        table.push(cells.collect());
    }
    table.to_text()
}
