//! The functions to begin with: those that the user names, or those that sampling finds.

use anyhow::{Context, Result, bail};
use clap::Args;
use host::table::{Column, TextTable};
use host::{note, out};
use image::linked::LinkedKernel;
use live::choice;
use live::owners::Owners;
use live::roots::{self, Root};
use live::running::RunningKernel;
use live::sample;
use std::time::Duration;

#[derive(Args)]
pub struct RootArgs {
    /// The functions to begin with; by default those that sampling finds on the kernel's stacks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub root: Vec<String>,

    /// For how many seconds to sample, where no root is named
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub sample: f64,

    /// A root is on at least this many percent of the sampled stacks
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0)]
    pub share: f64,
}

impl RootArgs {
    /// The roots, by their numbers. Prints what sampling found.
    ///
    /// # Errors
    /// A function that was named cannot be replaced; sampling found none.
    pub fn choose(&self, kernel: &LinkedKernel<'_>, running: &RunningKernel) -> Result<Vec<usize>> {
        if !self.root.is_empty() {
            return choice::countable(kernel, running, &Owners::read(), &self.root);
        }
        let found = self.sampled(kernel, running)?;
        let mut table = TextTable::of([Column::right("% stacks").fixed(9), Column::left("root")]);
        for root in &found {
            let name = kernel.title(&kernel.functions[root.function]);
            table.push(vec![format!("{:.1}", 100.0 * root.share), name]);
        }
        out!("{}", table.to_text())?;
        Ok(found.iter().map(|root| root.function).collect())
    }

    fn sampled(&self, kernel: &LinkedKernel<'_>, running: &RunningKernel) -> Result<Vec<Root>> {
        let time = Duration::try_from_secs_f64(self.sample).context("--sample")?;
        note!("sampling the kernel for {} s", self.sample);
        let samples = sample::sample(time)?;
        if samples.stacks.is_empty() {
            bail!(
                "the kernel did nothing while it was sampled: run this under the load that it is \
                 meant for, or name a --root"
            );
        }
        if samples.lost > 0 {
            note!("the samples' ring was full {} times: some are missing", samples.lost);
        }
        let owners = Owners::read();
        let found = roots::of_samples(kernel, running, &owners, &samples, self.share / 100.0)?;
        if found.is_empty() {
            bail!(
                "of {} sampled stacks none holds a function that can be replaced on {} % of them: \
                 sample longer, or lower --share",
                samples.stacks.len(),
                self.share
            );
        }
        Ok(found)
    }
}
